#include "signature.h"

#include <nlohmann/json.hpp>

#include "errors.h"

namespace dsak::python {
namespace {

using Json = nlohmann::json;

std::string join(const Json& words, const char* separator) {
  std::string text;
  for (const Json& word : words) text += (text.empty() ? "" : separator) + word.get<std::string>();
  return text;
}

std::string shape_text(const Json& tensor) {
  std::string text = "[";
  const Json& at_least = tensor.at("at_least");
  size_t i = 0;
  for (const Json& word : tensor.at("shape")) {
    if (i > 0) text += ", ";
    if (i < at_least.size() && at_least[i].get<bool>()) text += ">=";
    text += word.get<std::string>();
    ++i;
  }
  return text + "]";
}

Param parse_tensor(const Json& json) {
  Param p{};
  p.kind = json.at("output").get<bool>() ? Kind::kOutput : Kind::kInput;
  p.optional = json.at("optional").get<bool>();
  p.dtypes = join(json.at("dtypes"), "|");
  p.wanted = "a " + p.dtypes + " tensor " + shape_text(json) + " on the device";
  if (p.kind == Kind::kOutput)
    p.wanted += p.optional ? ", True to have it allocated, or None" : ", or None to have it allocated";
  if (p.kind == Kind::kInput && p.optional) p.wanted += ", or None";
  return p;
}

Param parse_scalar(const Json& json) {
  Param p{};
  const auto dtype = json.at("dtype").get<std::string>();
  p.kind = dtype == "f32" ? Kind::kFloat : dtype == "choice" ? Kind::kChoice : Kind::kInt;
  p.optional = !json.at("default").is_null();
  p.wanted = p.kind == Kind::kFloat ? "a float"
             : p.kind == Kind::kInt ? "an int"
                                    : "one of '" + join(json.at("choices"), "', '") + "'";
  return p;
}

}  // namespace

bool parse_signature(const char* op, const char* text, std::vector<Param>* params) try {
  const Json json = Json::parse(text);
  if (json.size() > kMaxParams) {
    raise_format(DSAK_ERR_PACK_SCHEMA, "%s: found %zu parameters; wanted at most %d; use a newer dsa-kernels", op, json.size(),
                 kMaxParams);
    return false;
  }
  for (const Json& item : json) {
    Param p = item.at("kind") == "tensor" ? parse_tensor(item) : parse_scalar(item);
    p.text = item.at("name").get<std::string>();
    p.name = PyUnicode_InternFromString(p.text.c_str());
    if (p.name == nullptr) return false;
    params->push_back(std::move(p));
  }
  return true;
} catch (const std::exception& e) {
  raise_format(
      DSAK_ERR_PACK_SCHEMA,
      "%s: found a declaration that does not parse (%s); wanted the parameters of docs/manifest.md; reinstall the pack", op,
      e.what());
  return false;
}

}  // namespace dsak::python
