#include "plan.h"

#include <algorithm>
#include <unordered_map>

#include "error.h"

namespace dsak {
namespace {

class SlotNames final : public Names {
 public:
  void add(const std::string& name, int slot, Type type) {
    if (!slots_.emplace(name, Place{slot, type}).second)
      fail(DSAK_ERR_PACK_SCHEMA, "found the name ", name, " twice, wanted parameters and symbols to differ");
  }
  bool find(std::string_view name, int* slot, Type* type) const override {
    const auto it = slots_.find(std::string(name));
    if (it == slots_.end()) return false;
    *slot = it->second.slot;
    *type = it->second.type;
    return true;
  }

 private:
  struct Place {
    int slot;
    Type type;
  };
  std::unordered_map<std::string, Place> slots_;
};

bool is_identifier(std::string_view s) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !s.empty() && letter(s[0]) &&
         std::all_of(s.begin(), s.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

class Builder {
 public:
  Builder(Plan& plan, const Manifest& manifest, const OpDecl& op) : plan_(plan), manifest_(manifest), op_(op) {}

  void build() {
    assign_slots();
    if (plan_.slots > kMaxSlots || plan_.num_tensors > kMaxTensors)
      fail(DSAK_ERR_PACK_SCHEMA, "found ", plan_.num_tensors, " tensors and ", plan_.slots, " variables, wanted at most ",
           kMaxTensors, " and ", kMaxSlots);
    for (size_t i = 0; i < op_.params.size(); ++i) compile_param(op_.params[i], plan_.params[i]);
    for (const RuleDecl& r : op_.rules) plan_.rules.push_back({expr(r.check), r.wanted, r.fix});
    plan_.args.reserve(op_.args.size());  // kernels point to them, and launches to kernels
    for (const std::vector<ArgDecl>& list : op_.args) compile_args(list);
    plan_.kernels.reserve(op_.kernels.size());
    for (const KernelDecl& k : op_.kernels) plan_.kernels.push_back({manifest_.object(k.object), &k, &plan_.args[k.args]});
    for (const CandidateDecl& c : op_.candidates) compile_candidate(c);
  }

 private:
  // Guards repeat themselves from candidate to candidate; a copy costs less than reading one again.
  Expr expr(const std::string& text) {
    const auto found = parsed_.find(text);
    return found != parsed_.end() ? found->second
                                  : parsed_.emplace(text, Expr::parse(text, names_, plan_.strings)).first->second;
  }

  void assign_slots() {
    int next = 0;
    for (const ParamDecl& d : op_.params) {
      ParamPlan p;
      p.tensor = d.tensor;
      p.name = d.name;
      p.slot = next;
      if (d.tensor) {
        p.index = plan_.num_tensors++;
        p.rank = static_cast<int>(d.shape.size());
        name_tensor(p);
        next += kSizes + 2 * p.rank;
      } else {
        p.kind = d.dtype == "f32"   ? ScalarKind::kF32
                 : d.dtype == "i32" ? ScalarKind::kI32
                 : d.dtype == "i64" ? ScalarKind::kI64
                                    : ScalarKind::kChoice;
        names_.add(p.name, next,
                   p.kind == ScalarKind::kF32      ? Type::kFloat
                   : p.kind == ScalarKind::kChoice ? Type::kString
                                                   : Type::kInt);
        next += 2;
      }
      plan_.params.push_back(std::move(p));
    }
    plan_.raw_slots = next;
    for (const std::string& s : op_.symbols) {
      names_.add(s, next, Type::kInt);
      plan_.symbols.push_back({s, next++, sources(s)});
    }
    names_.add("sm_count", plan_.sm_count_slot = next++, Type::kInt);
    names_.add("shared_memory", plan_.shared_memory_slot = next++, Type::kInt);
    plan_.slots = next;
  }

  void name_tensor(const ParamPlan& p) {
    names_.add(cat("has(", p.name, ')'), p.slot + kHas, Type::kInt);
    names_.add(cat(p.name, ".dtype"), p.slot + kDType, Type::kString);
    for (int i = 0; i < p.rank; ++i) {
      names_.add(cat(p.name, ".d", i), p.size_slot(i), Type::kInt);
      names_.add(cat(p.name, ".s", i), p.stride_slot(i), Type::kInt);
    }
  }

  std::vector<SymbolPlan::Source> sources(const std::string& symbol) const {
    std::vector<SymbolPlan::Source> out;
    for (size_t i = 0; i < op_.params.size(); ++i) {
      const ParamDecl& d = op_.params[i];
      const ParamPlan& p = plan_.params[i];
      for (size_t k = 0; d.tensor && !d.output && k < d.shape.size(); ++k)
        if (d.shape[k] == symbol) out.push_back({p.slot + kHas, p.size_slot(static_cast<int>(k)), &p});
    }
    if (!is_identifier(symbol) || out.empty())
      fail(DSAK_ERR_PACK_SCHEMA, "found symbol ", symbol, ", wanted a name that is a shape word of an input");
    return out;
  }

  void compile_param(const ParamDecl& d, ParamPlan& p) {
    p.optional = d.optional;
    p.output = d.output;
    p.at_least = d.at_least;
    p.align = static_cast<uint64_t>(d.align);
    p.layout = d.layout == "rows" ? Layout::kRows : d.layout == "contiguous" ? Layout::kContiguous : Layout::kAny;
    for (const std::string& t : d.dtypes) p.dtypes.push_back({*find_dtype(t), plan_.strings.intern(t)});
    for (const std::string& s : d.shape) p.dims.push_back(expr(s));
    for (const std::string& c : d.choices) p.choices.push_back({c, plan_.strings.intern(c)});
    p.has_default = d.has_default;
    if (d.has_default) p.default_value = expr(d.default_value);
  }

  void compile_args(const std::vector<ArgDecl>& list) {
    plan_.args.emplace_back();
    plan_.args.back().reserve(list.size());
    for (const ArgDecl& a : list) plan_.args.back().push_back(compile_arg(a));
  }

  void compile_candidate(const CandidateDecl& d) {
    CandidatePlan c;
    c.name = d.name;
    for (const std::string& part : conjuncts(d.when)) c.when.push_back(expr(part));
    c.workspace = expr(d.workspace);
    size_t words = 0, maps = 0;
    for (const LaunchDecl& l : d.launches) {
      c.launches.push_back(compile_launch(l));
      const std::vector<ArgPlan>& args = *c.launches.back().kernel->args;
      words += args.size();
      maps += static_cast<size_t>(
          std::count_if(args.begin(), args.end(), [](const ArgPlan& a) { return a.kind == ArgPlan::kMap; }));
    }
    plan_.max_words = std::max(plan_.max_words, words);
    plan_.max_maps = std::max(plan_.max_maps, maps);
    plan_.max_launches = std::max(plan_.max_launches, c.launches.size());
    plan_.candidates.push_back(std::move(c));
  }

  LaunchPlan compile_launch(const LaunchDecl& d) {
    LaunchPlan l{};
    l.kernel = &plan_.kernels[d.kernel];
    l.function = plan_.num_functions++;
    for (int i = 0; i < 3; ++i) {
      l.grid[i] = expr(d.grid[i]);
      l.cluster[i] = d.cluster[i];
    }
    return l;
  }

  ArgPlan compile_arg(const ArgDecl& a) {
    ArgPlan out{ArgPlan::kNull, -1, {}, a.name, {a.box[0], a.box[1]}};
    if (a.type == "ptr") {
      out.kind = ArgPlan::kPointer;
      out.tensor = a.value == "workspace" ? -1 : tensor(a.value);
      out.value = expr(a.offset);
    } else if (a.type == "map") {
      out.kind = ArgPlan::kMap;
      out.tensor = tensor(a.value);
      const ParamPlan& p = *plan_.tensor(out.tensor);
      if ((p.rank != 2 && p.rank != 3) || p.optional || plan_.target->vendor != Vendor::kNvidia)
        fail(DSAK_ERR_PACK_SCHEMA, "found argument ", a.name, ", a tensor map of ", a.value,
             ", wanted a required tensor of two or three dimensions and an NVIDIA target");
    } else if (a.type != "null") {
      out.kind = a.type == "i32" ? ArgPlan::kI32 : a.type == "i64" ? ArgPlan::kI64 : ArgPlan::kF32;
      out.value = expr(a.value);
    }
    return out;
  }

  int tensor(const std::string& name) const {
    for (const ParamPlan& p : plan_.params)
      if (p.tensor && p.name == name) return p.index;
    fail(DSAK_ERR_PACK_SCHEMA, "found a pointer to ", name, ", wanted a tensor of the op or workspace");
  }

  Plan& plan_;
  const Manifest& manifest_;
  const OpDecl& op_;
  SlotNames names_;
  std::unordered_map<std::string, Expr> parsed_;
};

}  // namespace

const ParamPlan* Plan::tensor(int index) const {
  const auto it = std::find_if(params.begin(), params.end(), [&](const ParamPlan& p) { return p.tensor && p.index == index; });
  return it != params.end() ? &*it : nullptr;
}

Plan::Plan(const Manifest& manifest, const OpDecl& decl, const std::string& where) : op(&decl), target(&manifest.target) {
  params.reserve(decl.params.size());  // symbols point into it
  try {
    Builder(*this, manifest, decl).build();
  } catch (const Error& e) {
    fail(e.code, where, ": op ", decl.name, ": ", e.message, "; build or install the pack again");
  }
}

}  // namespace dsak
