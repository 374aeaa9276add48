#include "call.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace dsak {
namespace {

std::string text(const What& what) { return what.name != nullptr ? cat(what.kind, *what.name) : what.kind; }

Value value_of(const Plan& plan, const Expr& e, const int64_t* slots, const What& what) {
  Value v;
  const char* reason = nullptr;
  if (!e.eval(slots, &v, &reason))
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", text(what), ": found no value of ", e.text(), " (", reason, "; ",
         e.values(slots, plan.strings), "); change the arguments that it reads");
  return v;
}

bool is_true(const Plan& plan, const Expr& e, const int64_t* slots, const What& what) {
  const Value v = value_of(plan, e, slots, what);
  if (v.type == Type::kString)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", text(what), ": found a string as the value of ", e.text());
  return v.type == Type::kFloat ? v.f != 0 : v.i != 0;
}

double number(const Plan& plan, const Expr& e, const int64_t* slots, const What& what) {
  const Value v = value_of(plan, e, slots, what);
  if (v.type == Type::kString)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", text(what), ": found a string as the value of ", e.text(),
         ", wanted a number");
  return v.type == Type::kFloat ? v.f : static_cast<double>(v.i);
}

void set_default(const Plan& plan, const ParamPlan& p, int64_t* slots) {
  const What what{"default of ", &p.name};
  if (p.kind == ScalarKind::kF32) {
    const double v = number(plan, p.default_value, slots, what);
    std::memcpy(slots + p.slot, &v, sizeof v);
    return;
  }
  if (p.kind != ScalarKind::kChoice) {
    const int64_t v = evaluate(plan, p.default_value, slots, what);
    if (p.kind == ScalarKind::kI32 && v != static_cast<int32_t>(v))
      fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", text(what), ": found ", v, ", wanted a 32-bit integer; pass ", p.name);
    slots[p.slot] = v;
    return;
  }
  const Value v = value_of(plan, p.default_value, slots, what);
  const bool known = v.type == Type::kString &&
                     std::any_of(p.choices.begin(), p.choices.end(), [&](const ParamPlan::Choice& c) { return c.name == v.i; });
  if (!known)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", text(what), ": found ", to_text(v, plan.strings), ", wanted a choice");
  slots[p.slot] = v.i;
}

std::string bound_by(const Plan& plan, const Expr& dim, const int64_t* slots) {
  for (const SymbolPlan& s : plan.symbols)
    if (s.name == dim.text())
      for (const SymbolPlan::Source& x : s.sources)
        if (slots[x.has_slot] != 0) return cat(" as in ", x.param->name);
  return dim.is_constant() || dim.is_variable() ? "" : cat(" (", dim.values(slots, plan.strings), ')');
}

// Whether two index tuples may fall on one element: true unless each stride steps over all that the smaller ones reach.
bool may_overlap(const int64_t* sizes, const int64_t* strides, int rank) {
  int order[8], n = 0;  // manifests have at most 8 dimensions
  for (int i = 0; i < rank; ++i)
    if (sizes[i] > 1) order[n++] = i;
  std::sort(order, order + n, [&](int a, int b) { return strides[a] < strides[b]; });
  int64_t reach = 0;  // largest offset so far
  for (int k = 0; k < n; ++k) {
    int64_t more = 0;
    if (strides[order[k]] <= reach) return true;
    if (__builtin_mul_overflow(sizes[order[k]] - 1, strides[order[k]], &more) || __builtin_add_overflow(reach, more, &reach))
      return false;  // no memory is that large: the grid's limit says so in better words
  }
  return false;
}

void check_layout(const Plan& plan, const ParamPlan& p, const int64_t* slots) {
  const int64_t *sizes = slots + p.size_slot(0), *strides = slots + p.stride_slot(0);
  const std::string* op = &plan.op->name;
  const auto wrong = [&](const std::string& found, const std::string& wanted, const char* todo) {
    fail(DSAK_ERR_ARGUMENT, *op, ": ", p.name, ": found ", found, " (shape ", list_text(sizes, p.rank), ", strides ",
         list_text(strides, p.rank), "), wanted ", wanted, "; ", todo);
  };
  int64_t packed = 1;
  const int64_t bytes = p.dtypes[0].type.bytes();
  int64_t element = bytes;
  for (const ParamPlan::Allowed& a : p.dtypes)
    if (a.name == slots[p.slot + kDType]) element = a.type.bytes();
  for (int i = p.rank - 1; i >= 0; --i) {
    if (sizes[i] > 1) {
      const int64_t s = strides[i];
      if (p.layout == Layout::kContiguous && s != packed)
        wrong(cat("stride ", s, " in dimension ", i), cat(packed, " (contiguous)"), "make it contiguous before the call");
      if (p.layout == Layout::kRows && i == p.rank - 1 && s != 1)
        wrong(cat("stride ", s, " in the last dimension"), "1", "make its rows contiguous before the call");
      if (p.layout == Layout::kRows && s < 0)
        wrong(cat("stride ", s, " in dimension ", i), "0 or more", "copy it before the call");
      if (p.output && s <= 0)
        wrong(cat("stride ", s, " in dimension ", i), "a positive stride, since it is written",
              "pass a tensor whose elements do not overlap");
      const bool aligned = (static_cast<uint64_t>(s) * static_cast<uint64_t>(element) & (p.align - 1)) == 0;
      if (p.layout == Layout::kRows && i != p.rank - 1 && !aligned)
        wrong(cat("a stride of ", s, " elements, ", s * element, " bytes, in dimension ", i),
              cat("a multiple of ", p.align, " bytes"), "pad the rows or copy it before the call");
    }
    if (__builtin_mul_overflow(packed, sizes[i], &packed)) packed = INT64_MAX;
  }
  if (p.output && may_overlap(sizes, strides, p.rank))
    wrong("elements that overlap", "each element once, since it is written", "pass a tensor whose elements do not overlap");
}

uint32_t grid_size(const Plan& plan, const Expr& e, const int64_t* slots, int dim, const LaunchPlan& launch) {
  const int64_t v = evaluate(plan, e, slots, {"grid of ", &launch.kernel->decl->symbol});
  int64_t most = dim == 0 ? INT32_MAX : 65535;
  // AMD counts threads, not blocks, in 32 bits.
  if (plan.target->vendor == Vendor::kAmd) most = std::min<int64_t>(most, UINT32_MAX / launch.kernel->decl->block[dim]);
  if (v < 0 || v > most)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": grid of ", launch.kernel->decl->symbol, ": found ", v, " blocks in dimension ",
         dim, " (", e.text(), "), wanted 0 to ", most, "; split the call");
  const uint32_t cluster = launch.cluster[dim];
  if (v % cluster != 0)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": grid of ", launch.kernel->decl->symbol, ": found ", v, " blocks in dimension ",
         dim, " (", e.text(), "), wanted a multiple of the cluster's ", cluster);
  return static_cast<uint32_t>(v);
}

uint64_t scalar_word(const Plan& plan, const ArgPlan& a, const int64_t* slots, const LaunchPlan& launch) {
  uint64_t word = 0;
  if (a.kind == ArgPlan::kF32) {
    const float f = static_cast<float>(number(plan, a.value, slots, {"argument ", &a.name}));
    std::memcpy(&word, &f, sizeof f);
    return word;
  }
  const int64_t v = evaluate(plan, a.value, slots, {"argument ", &a.name});
  if (a.kind == ArgPlan::kI64) return static_cast<uint64_t>(v);
  const int32_t narrow = static_cast<int32_t>(v);
  if (v != narrow)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": argument ", a.name, " of ", launch.kernel->decl->symbol, ": found ", v, " (",
         a.value.text(), "), wanted a 32-bit integer; split the call");
  std::memcpy(&word, &narrow, sizeof narrow);
  return word;
}

// Rows of a tensor that has two dimensions, without its address.
BoxesView view_of(const Plan& plan, const ArgPlan& arg, const int64_t* slots) {
  const ParamPlan& p = *plan.tensor(arg.tensor);
  const auto dtype = std::find_if(p.dtypes.begin(), p.dtypes.end(),
                                  [&](const ParamPlan::Allowed& a) { return a.name == slots[p.slot + kDType]; });
  const uint64_t element = dtype->type.bits / 8;
  const auto at = [&](int slot) { return static_cast<uint64_t>(slots[slot]); };
  BoxesView view{};
  view.bytes = at(p.size_slot(p.rank - 1)) * element;
  view.rank = static_cast<uint32_t>(p.rank - 1);
  for (uint32_t i = 0; i < view.rank; ++i) {
    const int dimension = p.rank - 2 - static_cast<int>(i);
    // A map has a row at least, and a stride, of 16-byte units; nobody asks for a row that is not there.
    view.sizes[i] = std::max<uint64_t>(at(p.size_slot(dimension)), 1);
    view.strides[i] = view.sizes[i] > 1 ? at(p.stride_slot(dimension)) * element : (view.bytes + 15) / 16 * 16;
  }
  view.lines = arg.box[0] != 0 ? arg.box[0] : static_cast<uint32_t>(view.bytes / kLineBytes);
  view.rows = arg.box[1];
  return view;
}

}  // namespace

Resolution::Resolution(const Plan& plan) {
  launches.reserve(plan.max_launches);
  words.resize(plan.max_words);
  for (uint64_t& w : words) params.push_back(&w);
  patches.reserve(plan.max_words);
  maps.reserve(plan.max_maps);  // params point into it
  bases.reserve(static_cast<size_t>(plan.num_tensors));
}

int64_t evaluate(const Plan& plan, const Expr& e, const int64_t* slots, const What& what) {
  const Value v = value_of(plan, e, slots, what);
  if (v.type != Type::kInt)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", text(what), ": found ", to_text(v, plan.strings), " as the value of ",
         e.text(), ", wanted an integer");
  return v.i;
}

std::string list_text(const int64_t* slots, int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += cat(i > 0 ? ", " : "", slots[i]);
  return out + "]";
}

void bind(const Plan& plan, int64_t sm_count, int64_t* slots) {
  for (const SymbolPlan& s : plan.symbols) {
    slots[s.slot] = 0;
    for (const SymbolPlan::Source& x : s.sources)
      if (slots[x.has_slot] != 0) {
        slots[s.slot] = slots[x.size_slot];
        break;
      }
  }
  slots[plan.sm_count_slot] = sm_count;
  slots[plan.shared_memory_slot] = plan.target->shared_memory;
  // Shapes may read scalars, so defaults come before them.
  for (const ParamPlan& p : plan.params)
    if (!p.tensor && slots[p.slot + kGiven] == 0) set_default(plan, p, slots);
}

void check_shapes(const Plan& plan, const int64_t* slots) {
  for (const ParamPlan& p : plan.params) {
    if (!p.tensor || slots[p.slot + kHas] == 0) continue;
    for (int i = 0; i < p.rank; ++i) {
      const size_t k = static_cast<size_t>(i);
      const Expr& dim = p.dims[k];
      Value v;
      const char* reason = nullptr;
      if (!dim.eval(slots, &v, &reason) || v.type != Type::kInt) evaluate(plan, dim, slots, {"shape of ", &p.name});
      const int64_t found = slots[p.size_slot(i)];
      if (found == v.i || (p.at_least[k] && found > v.i)) continue;
      fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", p.name, ": found size ", found, " in dimension ", i, " (shape ",
           list_text(slots + p.size_slot(0), p.rank), "), wanted ", p.at_least[k] ? "at least " : "",
           dim.is_constant() ? "" : cat(dim.text(), " = "), v.i, bound_by(plan, dim, slots));
    }
  }
}

void check_layouts(const Plan& plan, const int64_t* slots) {
  for (const ParamPlan& p : plan.params)
    if (p.tensor && slots[p.slot + kHas] != 0 && !is_empty(p, slots)) check_layout(plan, p, slots);
}

void check_rules(const Plan& plan, const int64_t* slots) {
  for (const RulePlan& r : plan.rules)
    if (!is_true(plan, r.check, slots, {"rule", nullptr}))
      fail(DSAK_ERR_ARGUMENT, plan.op->name, ": found ", r.check.values(slots, plan.strings), ", wanted ", r.wanted, "; ",
           r.fix);
}

void list_bases(const Plan& plan, const int64_t* slots, Resolution* out) {
  out->bases.clear();
  for (const ParamPlan& p : plan.params)
    if (p.tensor && slots[p.slot + kHas] != 0 && !is_empty(p, slots))
      out->bases.push_back({p.index, static_cast<uintptr_t>(p.align - 1), &p});
}

void refuse_base(const Plan& plan, const Resolution::Base& base, uintptr_t address) {
  if (address == 0)
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", base.param->name, ": found a null address, wanted device memory");
  fail(DSAK_ERR_ARGUMENT, plan.op->name, ": ", base.param->name, ": found an address ", address & base.mask,
       " bytes past a multiple of ", base.param->align, ", wanted alignment to ", base.param->align,
       " bytes; copy it or start the view at an aligned element");
}

std::string rejection(const Plan& plan, const CandidatePlan& candidate, const int64_t* slots) {
  for (const Expr& e : candidate.when)
    if (!is_true(plan, e, slots, {"guard", nullptr})) {
      const std::string values = e.values(slots, plan.strings);
      return values.empty() ? cat("wants ", e.text()) : cat("wants ", e.text(), ", found ", values);
    }
  return {};
}

void choose(const Plan& plan, const int64_t* slots, Resolution* out) {
  for (const CandidatePlan& c : plan.candidates) {
    const bool holds =
        std::all_of(c.when.begin(), c.when.end(), [&](const Expr& e) { return is_true(plan, e, slots, {"guard", nullptr}); });
    if (!holds) continue;
    out->candidate = &c;
    const int64_t bytes = evaluate(plan, c.workspace, slots, {"workspace", nullptr});
    if (bytes < 0) fail(DSAK_ERR_ARGUMENT, plan.op->name, ": workspace: found ", bytes, " bytes, wanted 0 or more");
    out->workspace = static_cast<size_t>(bytes);
    return;
  }
  std::string trace;
  for (const CandidatePlan& c : plan.candidates) trace += cat("\n  ", c.name, ": rejected: ", rejection(plan, c, slots));
  fail(DSAK_ERR_NO_CANDIDATE, plan.op->name, ": found no candidate on ", plan.target->name, " for this call, wanted one of ",
       plan.candidates.size(), " to accept it; change the call as one of them wants:", trace);
}

void fill(const Plan& plan, const int64_t* slots, Resolution* out) {
  out->launches.clear();
  out->patches.clear();
  out->maps.clear();
  size_t word = 0;
  for (const LaunchPlan& l : out->candidate->launches) {
    Resolution::Launch launch{&l, {}, word};
    for (int i = 0; i < 3; ++i) launch.grid[i] = grid_size(plan, l.grid[i], slots, i, l);
    if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0) continue;
    for (const ArgPlan& a : *l.kernel->args) {
      out->words[word] = 0;
      out->params[word] = &out->words[word];
      if (a.kind == ArgPlan::kMap) {
        out->maps.push_back({{}, view_of(plan, a, slots), a.tensor});
        out->params[word] = out->maps.back().opaque;
      } else if (a.kind == ArgPlan::kPointer)
        out->patches.push_back({word, a.tensor, evaluate(plan, a.value, slots, {"argument ", &a.name})});
      else if (a.kind != ArgPlan::kNull)
        out->words[word] = scalar_word(plan, a, slots, l);
      ++word;
    }
    out->launches.push_back(launch);
  }
}

}  // namespace dsak
