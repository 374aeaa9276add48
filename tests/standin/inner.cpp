// The core's inner functions for tests; none of this is in the public ABI.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "discover.h"
#include "error.h"
#include "expr.h"
#include "sha256.h"

#define INNER_API extern "C" __attribute__((visibility("default")))

using namespace dsak;

namespace {

struct Variable {
  const char* name;
  int32_t type;  // of dsak::Type
  int64_t i;
  double f;
  const char* s;
};

struct Result {
  int32_t type;  // of dsak::Type; -1 no value, -2 does not parse
  int64_t i;
  double f;
  char s[512];  // a string's text, or why there is no value
};

class Environment final : public Names {
 public:
  bool find(std::string_view name, int* slot, Type* type) const override {
    const auto it = places.find(std::string(name));
    if (it == places.end()) return false;
    *slot = it->second.first;
    *type = it->second.second;
    return true;
  }
  std::map<std::string, std::pair<int, Type>> places;
};

void put(char* to, size_t room, const std::string& text) { std::snprintf(to, room, "%s", text.c_str()); }

}  // namespace

// Evaluate `text`. With `split`, as the runtime evaluates guards: its conjuncts one by one, the value 0 or 1.
INNER_API void inner_eval(const char* text, const Variable* variables, int count, int split, Result* out) {
  Strings strings;
  Environment names;
  std::vector<int64_t> slots(static_cast<size_t>(count) + 1);
  for (int i = 0; i < count; ++i) {
    const Variable& v = variables[i];
    const Type type = static_cast<Type>(v.type);
    names.places[v.name] = {i, type};
    int64_t word = type == Type::kString ? strings.intern(v.s) : v.i;
    if (type == Type::kFloat) std::memcpy(&word, &v.f, sizeof word);
    slots[static_cast<size_t>(i)] = word;
  }
  std::vector<Expr> parts;
  try {
    if (split)
      for (const std::string& p : conjuncts(text)) parts.push_back(Expr::parse(p, names, strings));
    else
      parts.push_back(Expr::parse(text, names, strings));
  } catch (const Error& e) {
    out->type = -2;
    return put(out->s, sizeof out->s, e.message);
  }
  Value v = Value::of(int64_t{1});
  for (const Expr& e : parts) {
    const char* reason = nullptr;
    if (!e.eval(slots.data(), &v, &reason) || (split && v.type == Type::kString)) {
      out->type = -1;
      return put(out->s, sizeof out->s, reason != nullptr ? reason : "a string is neither true nor false");
    }
    if (!split) break;
    v = Value::of(int64_t{v.type == Type::kFloat ? v.f != 0 : v.i != 0});
    if (v.i == 0) break;
  }
  out->type = static_cast<int32_t>(v.type);
  if (v.type == Type::kInt) out->i = v.i;
  if (v.type == Type::kFloat) out->f = v.f;
  if (v.type == Type::kString) put(out->s, sizeof out->s, strings.text(v.i));
}

INNER_API void inner_sha256(const void* data, size_t size, char* hex) { put(hex, 65, sha256_hex(data, size)); }

// "vendor|name|arch" of each device below `root`, a line each.
INNER_API void inner_discover(const char* root, char* out, size_t room) {
  std::string text;
  for (const SeenDevice& d : discover(root))
    text += cat(d.vendor == Vendor::kNvidia ? "nvidia" : "amd", '|', d.name, '|', d.arch, '\n');
  put(out, room, text);
}
