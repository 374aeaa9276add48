#include "runtime.h"

#include <algorithm>
#include <cstdlib>

#include "error.h"

namespace dsak {
namespace {

std::atomic<uint64_t> next_id{1};

std::string library(const char* given, const char* variable, const char* standard) {
  if (given != nullptr && *given != '\0') return given;
  const char* set = std::getenv(variable);
  return set != nullptr && *set != '\0' ? set : standard;
}

std::string version_text(Vendor vendor, int64_t v) {
  return vendor == Vendor::kNvidia ? cat("CUDA ", v / 1000, '.', v % 1000 / 10) : cat(v);
}

// Callers pass arguments by position and by the first pack's names: these must mean the same in every pack.
bool same_signature(const OpDecl& a, const OpDecl& b) {
  return std::equal(a.params.begin(), a.params.end(), b.params.begin(), b.params.end(),
                    [](const ParamDecl& x, const ParamDecl& y) {
                      return x.name == y.name && x.tensor == y.tensor && x.output == y.output && x.dtype == y.dtype;
                    });
}

}  // namespace

Bound::Bound(const PackPlan& s, Device& d)
    : id(next_id.fetch_add(1)), served(s), device(d), functions(static_cast<size_t>(s.plan->num_functions)) {}

void* Bound::load(const LaunchPlan& launch) {
  std::atomic<void*>& slot = functions[static_cast<size_t>(launch.function)];
  void* f = slot.load(std::memory_order_acquire);
  if (f == nullptr) {
    const KernelPlan& k = *launch.kernel;
    f = device.function(*served.pack, *k.object, k.decl->symbol, k.decl->shared, launch.cluster_size());
    slot.store(f, std::memory_order_release);
  }
  return f;
}

}  // namespace dsak

using namespace dsak;

dsak_runtime::dsak_runtime(const dsak_options& options) {
  libraries_[0] = library(options.cuda_library, "DSA_KERNELS_CUDA_LIBRARY", "libcuda.so.1");
  libraries_[1] = library(options.hip_library, "DSA_KERNELS_HIP_LIBRARY", "libamdhip64.so");
  for (size_t i = 0; i < options.num_packs; ++i) packs_.push_back(std::make_unique<Pack>(options.packs[i]));
  for (size_t i = 0; i < options.num_embedded; ++i) packs_.push_back(std::make_unique<Pack>(*options.embedded[i]));
  for (const auto& pack : packs_) add(*pack);
}

void dsak_runtime::add(const Pack& pack) {
  for (const OpDecl& decl : pack.manifest().ops) {
    dsak_op* op = nullptr;
    for (const auto& o : ops_)
      if (o->name == decl.name) op = o.get();
    if (op == nullptr) op = ops_.emplace_back(std::make_unique<dsak_op>(*this, decl.name)).get();
    for (const PackPlan& p : op->plans)
      if (p.plan->target->name == pack.manifest().target.name)
        fail(DSAK_ERR_ARGUMENT, "found op ", op->name, " for ", p.plan->target->name, " in two packs, ", p.pack->directory(),
             " and ", pack.directory(), ", wanted one; leave one of them out");
    if (!op->plans.empty() && !same_signature(*op->plans.front().plan->op, decl))
      fail(DSAK_ERR_ARGUMENT, "found op ", op->name, " with other parameters in ", pack.directory(), " than in ",
           op->plans.front().pack->directory(), ", wanted packs of one release; install them anew");
    op->plans.push_back({&pack, std::make_unique<Plan>(pack.manifest(), decl, cat(pack.directory(), "/manifest.json"))});
  }
}

dsak_op& dsak_runtime::find(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& op : ops_) {
    if (op->name == name) return *op;
    names.push_back(op->name);
  }
  fail(DSAK_ERR_NO_OP, "found no op ", name, ", wanted one of: ", names.empty() ? "(no pack is open)" : join(names),
       "; check the name, or install a pack that has it");
}

Driver& dsak_runtime::driver(Vendor vendor) {
  std::unique_ptr<Driver>& d = drivers_[static_cast<int>(vendor)];
  if (d == nullptr) d = vendor == Vendor::kNvidia ? open_cuda(libraries_[0]) : open_hip(libraries_[1]);
  return *d;
}

Device& dsak_runtime::device(DeviceKey key) {
  if (key.id < 0 || key.id >= kMaxDevices)
    fail(DSAK_ERR_DEVICE, "found device ", device_text(key), ", wanted a number from 0 to ", kMaxDevices - 1);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Device>& d = devices_[static_cast<int>(key.vendor)][key.id];
  if (d == nullptr) d = std::make_unique<Device>(driver(key.vendor), key);
  return *d;
}

void dsak_runtime::check_driver(const Pack& pack, const Device& device) const {
  const Target& t = pack.manifest().target;
  const int64_t found = t.min_driver > 0 ? device.driver().version() : 0;
  if (found < t.min_driver)
    fail(DSAK_ERR_DRIVER_OLD, "found a driver for ", version_text(t.vendor, found), ", wanted ",
         version_text(t.vendor, t.min_driver), " or newer for the ", t.name, " pack; update the driver");
}

std::string dsak_op::targets() const {
  std::vector<std::string> names;
  for (const PackPlan& p : plans) names.push_back(p.plan->target->name);
  return join(names);
}

const PackPlan& dsak_op::serve(const Device& device) const {
  for (const PackPlan& p : plans)
    if (serves(p, device)) return p;
  fail(DSAK_ERR_NO_PACK, name, ": found ", device_text(device.key()), ", a ", device.arch(), " (",
       vendor_name(device.key().vendor), "), wanted one of: ", targets(), "; install the pack for this architecture");
}

const PackPlan& dsak_op::plan_named(const std::string& target) const {
  for (const PackPlan& p : plans)
    if (p.plan->target->name == target) return p;
  fail(DSAK_ERR_NO_PACK, name, ": found no pack for target ", target, ", wanted one of: ", targets(),
       "; install the pack or name another target");
}

Bound& dsak_op::bind(DeviceKey key) {
  Device& device = runtime.device(key);
  const PackPlan& served = serve(device);
  runtime.check_driver(*served.pack, device);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::atomic<Bound*>& slot = table_[static_cast<int>(key.vendor)][key.id];
  if (Bound* b = slot.load(std::memory_order_acquire)) return *b;
  owned_.push_back(std::make_unique<Bound>(served, device));
  slot.store(owned_.back().get(), std::memory_order_release);
  return *owned_.back();
}

const Plan& dsak_op::plan_for(DeviceKey key) {
  if (const Bound* b = bound(key)) return *b->served.plan;
  const Plan* only = nullptr;
  int count = 0;
  for (const PackPlan& p : plans)
    if (p.plan->target->vendor == key.vendor) only = p.plan.get(), ++count;
  if (count == 1) return *only;
  if (count == 0)
    fail(DSAK_ERR_NO_PACK, name, ": found a tensor on ", device_text(key), ", wanted a device of: ", targets(),
         "; install the pack for this device's architecture");
  return *bind(key).served.plan;
}
