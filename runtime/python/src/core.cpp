#include "core.h"

#include "../../src/runtime.h"
#include "dlpack.h"

namespace dsak::python {

bool needs_workspace(const dsak_op& op) {
  for (const PackPlan& pack : op.plans)
    for (const CandidateDecl& candidate : pack.plan->op->candidates)
      if (candidate.workspace != "0") return true;
  return false;
}

int32_t device_type(const dsak_op& op, std::string_view target) {
  for (const PackPlan& pack : op.plans)
    if (pack.plan->target->name == target) return pack.plan->target->vendor == Vendor::kNvidia ? dlpack::kCuda : dlpack::kRocm;
  return 0;
}

std::vector<std::string> op_names(const dsak_runtime& runtime) {
  std::vector<std::string> names;
  for (const auto& op : runtime.ops()) names.push_back(op->name);
  return names;
}

std::vector<std::string> vendors(const dsak_runtime& runtime) {
  std::vector<std::string> names;
  for (const auto& pack : runtime.packs())
    names.emplace_back(pack->manifest().target.vendor == Vendor::kNvidia ? "nvidia" : "amd");
  return names;
}

}  // namespace dsak::python
