#include "manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dtype.h"
#include "error.h"

namespace dsak {
namespace {

using Json = nlohmann::json;  // ordered_json copies an object's members whenever it grows
constexpr int64_t kMajor = 1;

// A place in the document. The path is spelled out only when something is wrong there.
struct Node {
  const Json& json;
  const Node* parent;
  std::string_view key;
  size_t index;
  const std::string* where;  // of the root

  std::string path() const {
    if (parent == nullptr) return "$";
    return key.data() != nullptr ? cat(parent->path(), '.', key) : cat(parent->path(), '[', index, ']');
  }
  const std::string& file() const { return parent == nullptr ? *where : parent->file(); }

  [[noreturn]] void wrong(const std::string& found, const std::string& wanted) const {
    fail(DSAK_ERR_PACK_SCHEMA, file(), ": ", path(), ": found ", found, ", wanted ", wanted,
         "; build or install the pack again");
  }
  [[noreturn]] void type(const char* wanted) const { wrong(json.type_name(), wanted); }

  Node operator[](std::string_view name) const {
    if (!json.is_object()) type("an object");
    const auto it = json.find(name);
    if (it == json.end()) wrong(cat("no key ", name), cat("the key ", name));
    return {*it, this, name, 0, nullptr};
  }
  bool has(const char* name) const { return json.is_object() && json.contains(name); }

  template <class Each>
  void each(Each body) const {
    if (!json.is_array()) type("an array");
    for (size_t i = 0; i < json.size(); ++i) body(Node{json[i], this, {}, i, nullptr});
  }

  const std::string& text() const {
    if (!json.is_string()) type("a string");
    return json.get_ref<const std::string&>();
  }
  int64_t integer(int64_t low, int64_t high) const {
    if (!json.is_number_integer()) type("an integer");
    const bool huge = json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX};
    const int64_t v = json.get<int64_t>();
    if (huge || v < low || v > high) wrong(json.dump(), cat("an integer from ", low, " to ", high));
    return v;
  }
  bool boolean() const {
    if (!json.is_boolean()) type("true or false");
    return json.get<bool>();
  }
  // An expression: a string, or a number that stands for itself.
  std::string expression() const {
    if (json.is_string()) return text();
    if (!json.is_number()) type("an expression");
    return json.dump();
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> out;
    each([&](const Node& n) { out.push_back(n.text()); });
    return out;
  }
  std::string_view one_of(std::initializer_list<std::string_view> words) const {
    const std::string& found = text();
    for (std::string_view w : words)
      if (w == found) return w;
    wrong(found, join(words));
  }
};

void read_three(const Node& n, uint32_t (&out)[3], int64_t high) {
  size_t count = 0;
  n.each([&](const Node& x) {
    if (count < 3) out[count] = static_cast<uint32_t>(x.integer(1, high));
    ++count;
  });
  if (count != 3) n.wrong(cat(count, " elements"), "3");
}

Target read_target(const Node& n) {
  Target t{};
  t.name = n["name"].text();
  t.vendor = n["vendor"].one_of({"nvidia", "amd"}) == "amd" ? Vendor::kAmd : Vendor::kNvidia;
  t.arch = t.device_arch = n["arch"].text();
  // sm_90a names compute capability (9, 0): the letter says which compiler features the objects use.
  if (t.vendor == Vendor::kNvidia && !t.arch.empty() && t.arch.back() >= 'a') t.device_arch.pop_back();
  t.shared_memory = n["shared_memory"].integer(0, INT32_MAX);
  t.units = n["units"].integer(1, INT32_MAX);
  t.elf_machine = n["elf_machine"].integer(0, UINT16_MAX);
  t.elf_abi = n["elf_abi"].integer(0, UINT8_MAX);
  t.elf_flags = n["elf_flags"].integer(0, UINT32_MAX);
  t.elf_flags_mask = n["elf_flags_mask"].integer(0, UINT32_MAX);
  t.min_driver = n["min_driver"].integer(0, INT32_MAX);
  return t;
}

bool is_digest(std::string_view s) { return s.size() == 64 && s.find_first_not_of("0123456789abcdef") == s.npos; }

std::vector<ObjectDecl> read_objects(const Node& n) {
  if (!n.json.is_object()) n.type("an object");
  std::vector<ObjectDecl> out;
  for (const auto& [key, value] : n.json.items()) {
    const Node o{value, &n, key, 0, nullptr};
    if (!is_digest(key)) o.wrong(key, "a sha256 in lower-case hexadecimal as the key");
    ObjectDecl d;
    d.sha256 = key;
    d.file = o["file"].text();
    // Objects live inside the pack, whatever a manifest says.
    if (d.file.empty() || d.file[0] == '/' || cat('/', d.file, '/').find("/../") != std::string::npos)
      o["file"].wrong(d.file, "a path inside the pack");
    d.size = o["size"].integer(1, INT64_C(1) << 40);
    d.kernel = o["kernel"].text();
    d.resources = o["resources"].json.dump();
    out.push_back(std::move(d));
  }
  std::sort(out.begin(), out.end(), [](const ObjectDecl& a, const ObjectDecl& b) { return a.sha256 < b.sha256; });
  return out;
}

ParamDecl read_tensor(const Node& n) {
  ParamDecl p;
  p.tensor = true;
  p.name = n["name"].text();
  n["dtypes"].each([&](const Node& d) {
    if (find_dtype(d.text()) == nullptr) d.wrong(d.text(), "an element type that this runtime knows");
    p.dtypes.push_back(d.text());
  });
  if (p.dtypes.empty()) n["dtypes"].wrong("no element type", "at least one");
  n["shape"].each([&](const Node& d) { p.shape.push_back(d.expression()); });
  if (p.shape.size() > 8) n["shape"].wrong(cat(p.shape.size(), " dimensions"), "at most 8");
  n["at_least"].each([&](const Node& d) { p.at_least.push_back(d.boolean()); });
  if (p.at_least.size() != p.shape.size()) n["at_least"].wrong(cat(p.at_least.size(), " elements"), "one per dimension");
  p.optional = n["optional"].boolean();
  p.output = n["output"].boolean();
  p.layout = n["layout"].one_of({"rows", "contiguous", "any"});
  p.align = n["align"].integer(1, 1 << 20);
  if ((p.align & (p.align - 1)) != 0) n["align"].wrong(cat(p.align), "a power of two");
  return p;
}

ParamDecl read_scalar(const Node& n) {
  ParamDecl p;
  p.tensor = false;
  p.name = n["name"].text();
  p.dtype = n["dtype"].one_of({"f32", "i32", "i64", "choice"});
  const Node d = n["default"];
  p.has_default = !d.json.is_null();
  if (p.has_default) p.default_value = d.expression();
  p.choices = n["choices"].texts();
  if ((p.dtype == "choice") == p.choices.empty())
    n["choices"].wrong(cat(p.choices.size(), " choices"), "choices exactly for dtype choice");
  return p;
}

ArgDecl read_arg(const Node& n) {
  ArgDecl a;
  a.name = n["name"].text();
  a.type = n["type"].one_of({"ptr", "map", "null", "i32", "i64", "f32"});
  if (a.type == "map") {
    a.value = n["value"].text();
    a.box[0] = static_cast<uint32_t>(n["lines"].integer(0, 256));
    a.box[1] = static_cast<uint32_t>(n["rows"].integer(1, 256));
  } else if (a.type == "ptr") {
    a.value = n["value"].text();
    a.offset = n.has("offset") ? n["offset"].expression() : "0";
  } else if (a.type != "null") {
    a.value = n["value"].expression();
  }
  return a;
}

// The number of an element of a list of `count`.
size_t read_number(const Node& n, size_t count) { return static_cast<size_t>(n.integer(0, static_cast<int64_t>(count) - 1)); }

KernelDecl read_kernel(const Node& n, const Manifest& m, size_t lists) {
  KernelDecl k;
  k.object = n["object"].text();
  if (m.object(k.object) == nullptr) n["object"].wrong(k.object, "a key of $.objects");
  k.symbol = n["symbol"].text();
  read_three(n["block"], k.block, 1024);
  k.shared = static_cast<uint32_t>(n["shared"].integer(0, INT32_MAX));
  k.dependent = n["dependent"].boolean();
  k.args = read_number(n["args"], lists);
  return k;
}

LaunchDecl read_launch(const Node& n, size_t kernels) {
  LaunchDecl l;
  l.kernel = read_number(n["kernel"], kernels);
  size_t count = 0;
  n["grid"].each([&](const Node& g) {
    if (count < 3) l.grid[count] = g.expression();
    ++count;
  });
  if (count != 3) n["grid"].wrong(cat(count, " elements"), "3");
  read_three(n["cluster"], l.cluster, 16);
  return l;
}

OpDecl read_op(const Node& n, const Manifest& m) {
  OpDecl op;
  op.name = n["name"].text();
  op.doc = n["doc"].text();
  n["params"].each([&](const Node& p) {
    op.params.push_back(p["kind"].one_of({"tensor", "scalar"}) == "tensor" ? read_tensor(p) : read_scalar(p));
  });
  op.params_json = n["params"].json.dump();
  op.symbols = n["symbols"].texts();
  n["rules"].each([&](const Node& r) { op.rules.push_back({r["check"].expression(), r["wanted"].text(), r["fix"].text()}); });
  n["args"].each([&](const Node& list) {
    op.args.emplace_back();
    list.each([&](const Node& a) { op.args.back().push_back(read_arg(a)); });
  });
  n["kernels"].each([&](const Node& k) { op.kernels.push_back(read_kernel(k, m, op.args.size())); });
  n["candidates"].each([&](const Node& c) {
    CandidateDecl d{c["name"].text(), c["when"].expression(), c["workspace"].expression(), {}};
    c["launches"].each([&](const Node& l) { d.launches.push_back(read_launch(l, op.kernels.size())); });
    if (d.launches.empty()) c["launches"].wrong("no launch", "at least one");
    op.candidates.push_back(std::move(d));
  });
  return op;
}

void check_version(const Node& root) {
  const Node n = root["schema_version"];
  const std::string& v = n.text();
  const size_t dot = v.find('.');
  const bool form = dot != v.npos && dot > 0 && dot < 6 && dot + 1 < v.size() && v.find_first_not_of("0123456789.") == v.npos &&
                    v.find('.', dot + 1) == v.npos;
  if (!form) n.wrong(cat('"', v, '"'), "major.minor");
  if (std::stoll(v.substr(0, dot)) != kMajor)
    fail(DSAK_ERR_PACK_SCHEMA, n.file(), ": found schema_version ", v, ", wanted ", kMajor,
         ".x; install the dsa-kernels runtime and pack of the same release");
}

// What the JSON parser lets pass: it ends at a NUL, and writing deep nesting out again recurses.
void check_text(std::string_view text, const std::string& where) {
  constexpr int kMaxNesting = 64;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') fail(DSAK_ERR_PACK_SCHEMA, where, ": found a NUL byte, wanted JSON; build or install the pack again");
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting)
        fail(DSAK_ERR_PACK_SCHEMA, where, ": found nesting deeper than ", kMaxNesting,
             ", wanted a manifest; build or install the pack again");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

const ObjectDecl* Manifest::object(std::string_view sha256) const {
  const auto it = std::lower_bound(objects.begin(), objects.end(), sha256,
                                   [](const ObjectDecl& o, std::string_view key) { return o.sha256 < key; });
  return it != objects.end() && it->sha256 == sha256 ? &*it : nullptr;
}

const OpDecl* Manifest::op(std::string_view name) const {
  for (const OpDecl& o : ops)
    if (o.name == name) return &o;
  return nullptr;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  check_text(text, where);
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    fail(DSAK_ERR_PACK_SCHEMA, where, ": found text that is not JSON (", e.what(), "); build or install the pack again");
  }
  const Node root{json, nullptr, {}, 0, &where};
  check_version(root);
  Manifest m;
  m.schema_version = root["schema_version"].text();
  m.package = root["package"].json.dump();
  m.toolchain = root["toolchain"].json.dump();
  m.target = read_target(root["target"]);
  m.objects = read_objects(root["objects"]);
  root["ops"].each([&](const Node& n) {
    m.ops.push_back(read_op(n, m));
    for (size_t i = 0; i + 1 < m.ops.size(); ++i)
      if (m.ops[i].name == m.ops.back().name) n["name"].wrong(cat("a second ", m.ops[i].name), "each op once");
  });
  return m;
}

}  // namespace dsak
