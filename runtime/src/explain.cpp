#include <cstring>

#include "error.h"
#include "launch.h"

namespace dsak {
namespace {

std::string call_text(const Plan& plan, const int64_t* slots) {
  std::string out;
  for (const ParamPlan& p : plan.params) {
    const int64_t* s = slots + p.slot;
    if (p.tensor && s[kHas] == 0) {
      out += cat("\n  ", p.name, ": absent");
    } else if (p.tensor) {
      out += cat("\n  ", p.name, ": ", plan.strings.text(s[kDType]), ' ', list_text(slots + p.size_slot(0), p.rank),
                 ", strides ", list_text(slots + p.stride_slot(0), p.rank));
    } else {
      const Type type = p.kind == ScalarKind::kF32 ? Type::kFloat : p.kind == ScalarKind::kChoice ? Type::kString : Type::kInt;
      out += cat("\n  ", p.name, ": ", to_text(load(slots, p.slot, type), plan.strings), s[kGiven] == 0 ? " (default)" : "");
    }
  }
  for (const SymbolPlan& s : plan.symbols) out += cat("\n  ", s.name, " = ", slots[s.slot]);
  return out;
}

std::string three(const uint32_t (&v)[3]) { return cat('(', v[0], ", ", v[1], ", ", v[2], ')'); }

std::string launches_text(const Plan& plan, const int64_t* slots, const CandidatePlan& c) {
  Resolution r(plan);
  r.candidate = &c;
  fill(plan, slots, &r);
  std::string out;
  size_t next = 0;
  for (const LaunchPlan& l : c.launches) {
    const KernelPlan& k = *l.kernel;
    out += cat("\n    ", k.decl->symbol, ": ");
    const bool runs = next < r.launches.size() && r.launches[next].plan == &l;
    out += runs ? cat("grid ", three(r.launches[next++].grid)) : std::string("empty grid, skipped");
    out += cat(", block ", three(k.decl->block), ", cluster ", three(l.cluster), ", dynamic shared memory ", k.decl->shared,
               " bytes", k.decl->dependent ? ", may start before the kernel before it ends" : "", "\n      object ",
               k.object->sha256.substr(0, 12), " (", k.object->kernel, "), resources ", k.object->resources);
  }
  return out;
}

// The number of multiprocessors only a driver knows; without one it is the target's.
std::string explain_plan(const Plan& plan, const std::string& where, int64_t sm_count, const Arguments& in, DeviceKey key) {
  int64_t slots[kMaxSlots];
  Bases bases;
  if (!gather(plan, in, key, slots, bases)) refuse(plan, in, key);
  bind(plan, sm_count, slots);
  check_shapes(plan, slots);
  check_layouts(plan, slots);
  check_rules(plan, slots);

  std::string out = cat(plan.op->name, " on ", where, call_text(plan, slots), "\ncandidates, in order of preference:");
  bool chosen = false;
  for (const CandidatePlan& c : plan.candidates) {
    const std::string why = rejection(plan, c, slots);
    out += cat("\n  ", c.name, ": ",
               !why.empty() ? cat("rejected: ", why)
               : chosen     ? "accepted, after the chosen one"
                            : "chosen");
    if (!why.empty() || chosen) continue;
    chosen = true;
    out += cat("\n    workspace ", evaluate(plan, c.workspace, slots, {"workspace", nullptr}), " bytes",
               launches_text(plan, slots, c));
  }
  return out + (chosen ? "\n" : "\nno candidate serves this call\n");
}

}  // namespace

std::string explain(dsak_op& op, const char* target, const Arguments& given) {
  Arguments in = given;
  if (target != nullptr) {
    in.any_device = true;
    const Plan& named = *op.plan_named(target).plan;
    const int64_t units = named.target->units;
    return explain_plan(named, cat(target, " (no device asked, sm_count = ", units, ')'), units, in, {});
  }
  const DeviceKey key = device_of(op.any_plan(), in);
  const Bound& bound = op.bind(key);
  const Plan& plan = *bound.served.plan;
  return explain_plan(plan, cat(plan.target->name, " (", device_text(key), ", sm_count = ", bound.device.sm_count(), ')'),
                      bound.device.sm_count(), in, key);
}

}  // namespace dsak
