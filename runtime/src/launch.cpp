#include "launch.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace dsak {
namespace {

// A call as it was resolved. While the raw slots stay the same, so does everything but addresses.
struct Resolved {
  bool valid = false;
  std::vector<int64_t> raw;
  Resolution resolution;

  explicit Resolved(const Plan& plan) : raw(static_cast<size_t>(plan.raw_slots)), resolution(plan) {}
  bool matches(const int64_t* slots) const { return valid && std::memcmp(raw.data(), slots, raw.size() * sizeof *slots) == 0; }
};

// The last few calls of an op on a device by one thread; layers of a model take turns with a few shapes.
class Memo {
 public:
  explicit Memo(const Bound& bound) : owner(bound.id), plan_(*bound.served.plan) {}

  // The entry for `slots`, valid if there was one; else one that is to be filled.
  Resolved& find(const int64_t* slots) {
    for (size_t k = 0; k < kWays; ++k) {
      const size_t at = (last_ + k) % kWays;
      if (ways_[at] != nullptr && ways_[at]->matches(slots)) return *ways_[last_ = at];
    }
    last_ = (last_ + kWays - 1) % kWays;
    if (ways_[last_] == nullptr) ways_[last_] = std::make_unique<Resolved>(plan_);
    ways_[last_]->valid = false;
    return *ways_[last_];
  }

  const uint64_t owner;  // id of the Bound

 private:
  static constexpr size_t kWays = 4;
  const Plan& plan_;
  size_t last_ = 0;
  std::unique_ptr<Resolved> ways_[kWays];
};

// By the id of the Bound, which is never used again: an entry of a closed runtime is only ever replaced.
class Memos {
 public:
  Memo& of(const Bound& bound) {
    std::unique_ptr<Memo>& m = table_[bound.id % kSize];
    if (m == nullptr || m->owner != bound.id) m = std::make_unique<Memo>(bound);
    return *m;
  }

 private:
  static constexpr size_t kSize = 64;
  std::unique_ptr<Memo> table_[kSize];
};

thread_local Memos memos;

void check_bases(const Plan& plan, const Resolution& r, const uintptr_t* bases) {
  for (const Resolution::Base& b : r.bases) {
    const uintptr_t address = bases[b.tensor];
    if ((address & b.mask) != 0 || address == 0) refuse_base(plan, b, address);
  }
}

// The call, remembered or resolved now. Without `bases` addresses are not looked at.
Resolution& resolve(const Bound& bound, int64_t* slots, const uintptr_t* bases) {
  const Plan& plan = *bound.served.plan;
  Resolved& call = memos.of(bound).find(slots);
  Resolution& r = call.resolution;
  if (call.valid) {
    if (bases != nullptr) check_bases(plan, r, bases);
    return r;
  }
  std::memcpy(call.raw.data(), slots, call.raw.size() * sizeof *slots);
  bind(plan, bound.device.sm_count(), slots);
  check_shapes(plan, slots);
  check_layouts(plan, slots);
  list_bases(plan, slots, &r);
  if (bases != nullptr) check_bases(plan, r, bases);
  check_rules(plan, slots);
  choose(plan, slots, &r);
  fill(plan, slots, &r);
  call.valid = true;
  return r;
}

void check_workspace(const Plan& plan, const Resolution& r, void* workspace) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(workspace);
  if (r.workspace == 0 || (address != 0 && address % 256 == 0)) return;
  fail(DSAK_ERR_ARGUMENT, plan.op->name, ": workspace: found ",
       address == 0 ? "null" : cat("an address ", address % 256, " bytes past a multiple of 256"), ", wanted ", r.workspace,
       " bytes aligned to 256; ask dsak_workspace and allocate them");
}

// Tensor maps of the call's tensors.
void encode(const Plan& plan, Driver& driver, Resolution& r, const uintptr_t* bases) {
  for (Resolution::Map& m : r.maps) {
    // The address of an empty tensor was not looked at; any aligned one does, for nobody asks for a row of it.
    const uintptr_t base = bases[m.tensor], address = base != 0 && base % 16 == 0 ? base : 16;
    if (m.encoded && m.boxes.address == address) continue;
    m.boxes.address = address;
    const int code = driver.encode(m.boxes, m.opaque);
    m.encoded = code == 0;
    if (code == 0) continue;
    const ParamPlan& p = *plan.tensor(m.tensor);
    driver.encode_failed(code, cat(plan.op->name, ": ", p.name, ": "), m.boxes);
  }
}

void submit(Bound& bound, Resolution& r, const uintptr_t* bases, void* stream) {
  for (const Resolution::Launch& l : r.launches) bound.load(*l.plan);
  const Entered entered(bound.device);
  Driver& driver = bound.device.driver();
  if (entered.code() != 0) driver.enter_failed(entered.code());
  encode(*bound.served.plan, driver, r, bases);
  for (const Resolution::Launch& l : r.launches) {
    const KernelDecl& d = *l.plan->kernel->decl;
    const uint32_t (&cluster)[3] = l.plan->cluster;
    const LaunchConfig config{bound.functions[static_cast<size_t>(l.plan->function)].load(std::memory_order_relaxed),
                              {l.grid[0], l.grid[1], l.grid[2]},
                              {d.block[0], d.block[1], d.block[2]},
                              {cluster[0], cluster[1], cluster[2]},
                              d.shared,
                              d.dependent,
                              stream,
                              const_cast<void**>(r.params.data() + l.first_word)};
    const int code = driver.launch(config);
    if (code != 0) driver.launch_failed(code, config, cat(bound.served.plan->op->name, " (", d.symbol, ')'));
  }
}

// The call's variables from scratch, for the questions that need no addresses.
void gather_or_refuse(const Plan& plan, const Arguments& in, DeviceKey key, int64_t* slots) {
  Bases bases;
  if (!gather(plan, in, key, slots, bases)) refuse(plan, in, key);
}

}  // namespace

void launch(dsak_op& op, const Arguments& in, void* workspace, void* stream) {
  const DeviceKey key = device_of(op.any_plan(), in);
  Bound* bound = op.bound(key);
  if (bound == nullptr) bound = &op.bind(key);
  const Plan& plan = *bound->served.plan;

  int64_t slots[kMaxSlots];
  Bases bases;
  if (!gather(plan, in, key, slots, bases)) refuse(plan, in, key);

  Resolution& r = resolve(*bound, slots, bases);
  check_workspace(plan, r, workspace);
  for (const Resolution::Patch& p : r.patches) {
    const uintptr_t base = p.tensor < 0 ? reinterpret_cast<uintptr_t>(workspace) : bases[p.tensor];
    r.words[p.word] = base == 0 ? 0 : base + static_cast<uintptr_t>(p.offset);
  }
  submit(*bound, r, bases, stream);
}

size_t workspace_bytes(dsak_op& op, const Arguments& in) {
  const DeviceKey key = device_of(op.any_plan(), in);
  const Bound* bound = op.bound(key);
  if (bound == nullptr) bound = &op.bind(key);
  int64_t slots[kMaxSlots];
  gather_or_refuse(*bound->served.plan, in, key, slots);
  return resolve(*bound, slots, nullptr).workspace;
}

void infer(dsak_op& op, const Arguments& given, dsak_output* outputs, size_t* count) {
  Arguments in = given;
  in.outputs = false;
  const DeviceKey key = device_of(op.any_plan(), in);
  const Plan& plan = op.plan_for(key);
  int64_t slots[kMaxSlots];
  gather_or_refuse(plan, in, key, slots);
  bind(plan, 0, slots);
  check_shapes(plan, slots);
  check_layouts(plan, slots);
  check_rules(plan, slots);

  const size_t room = *count;
  *count = 0;
  char* at = reinterpret_cast<char*>(outputs);
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const ParamPlan& p = plan.params[i];
    if (!p.tensor || !p.output) continue;
    if (++*count > room) continue;
    dsak_output& o = *reinterpret_cast<dsak_output*>(at);
    if (o.struct_size < sizeof(dsak_output))
      fail(DSAK_ERR_ARGUMENT, "found struct_size ", o.struct_size, " in a dsak_output, wanted at least ", sizeof(dsak_output));
    at += o.struct_size;
    o.param = static_cast<int32_t>(i);
    o.ndim = p.rank;
    for (int k = 0; k < p.rank; ++k) {
      o.shape[k] = evaluate(plan, p.dims[static_cast<size_t>(k)], slots, {"shape of ", &p.name});
      if (o.shape[k] < 0)
        fail(DSAK_ERR_ARGUMENT, op.name, ": shape of ", p.name, ": found ", o.shape[k], " in dimension ", k,
             ", wanted 0 or more");
    }
    o.dtype_code = p.dtypes[0].type.code;
    o.dtype_bits = p.dtypes[0].type.bits;
  }
  if (*count > room) fail(DSAK_ERR_ARGUMENT, op.name, ": found room for ", room, " outputs, wanted ", *count);
}

void preload(dsak_op& op, DeviceKey key) {
  Bound& bound = op.bind(key);
  for (const CandidatePlan& c : bound.served.plan->candidates)
    for (const LaunchPlan& l : c.launches) bound.load(l);
}

void preload_all(dsak_runtime& runtime, DeviceKey key) {
  const Device& device = runtime.device(key);
  bool any = false;
  for (const auto& op : runtime.ops()) {
    const bool served = std::any_of(op->plans.begin(), op->plans.end(), [&](const PackPlan& p) { return serves(p, device); });
    if (served) preload(*op, key);
    any |= served;
  }
  if (!any)
    fail(DSAK_ERR_NO_PACK, "found ", device_text(key), ", a ", device.arch(), " (", vendor_name(key.vendor),
         "), wanted a pack for it; install the pack for this architecture");
}

}  // namespace dsak
