#include <cstring>

#include "call.h"
#include "error.h"

namespace dsak {
namespace {

constexpr int kCuda = 2, kRocm = 10;  // DLPack device types

bool on_device(const dsak_tensor& t, DeviceKey key) {
  return t.device.type == (key.vendor == Vendor::kNvidia ? kCuda : kRocm) && t.device.id == key.id;
}

const ParamPlan::Allowed* allowed(const ParamPlan& p, const dsak_tensor& t) {
  for (const ParamPlan::Allowed& a : p.dtypes)
    if (a.type.code == t.dtype.code && a.type.bits == t.dtype.bits && t.dtype.lanes == 1) return &a;
  return nullptr;
}

bool gather_tensor(const ParamPlan& p, const dsak_arg& a, const Arguments& in, DeviceKey device, int64_t* slots,
                   uintptr_t* base) noexcept {
  int64_t* s = slots + p.slot;
  if (a.kind == DSAK_ARG_NONE || (p.output && !in.outputs)) {
    std::memset(s, 0, sizeof *s * static_cast<size_t>(kSizes + 2 * p.rank));
    *base = 0;
    return p.optional || (p.output && !in.outputs);
  }
  if (a.kind != DSAK_ARG_TENSOR || a.value.tensor == nullptr) return false;
  const dsak_tensor& t = *a.value.tensor;
  const ParamPlan::Allowed* type = allowed(p, t);
  if (t.ndim != p.rank || (t.ndim > 0 && t.shape == nullptr) || type == nullptr || !(in.any_device || on_device(t, device)))
    return false;
  s[kHas] = 1;
  s[kDType] = type->name;
  s += kSizes;
  int64_t* strides = s + p.rank;
  uint64_t packed = 1;
  for (int i = p.rank - 1; i >= 0; --i) {
    const int64_t size = t.shape[i];
    if (size < 0) return false;
    s[i] = size;
    strides[i] = size <= 1 ? 0 : t.strides != nullptr ? t.strides[i] : static_cast<int64_t>(packed);
    packed *= static_cast<uint64_t>(size);
  }
  *base = reinterpret_cast<uintptr_t>(t.data) + static_cast<uintptr_t>(t.byte_offset);
  return true;
}

bool gather_choice(const ParamPlan& p, const char* word, int64_t* value) noexcept {
  if (word == nullptr) return false;
  for (const ParamPlan::Choice& c : p.choices)
    if (c.word == word) {
      *value = c.name;
      return true;
    }
  return false;
}

bool gather_scalar(const ParamPlan& p, const dsak_arg& a, int64_t* slots) noexcept {
  int64_t* s = slots + p.slot;
  s[kGiven] = a.kind != DSAK_ARG_NONE;
  s[kValue] = 0;
  if (a.kind == DSAK_ARG_NONE) return p.has_default;
  switch (p.kind) {
    case ScalarKind::kChoice: return a.kind == DSAK_ARG_CHOICE && gather_choice(p, a.value.choice, s);
    case ScalarKind::kF32: {
      if (a.kind != DSAK_ARG_FLOAT && a.kind != DSAK_ARG_INT) return false;
      const double v = a.kind == DSAK_ARG_FLOAT ? a.value.f : static_cast<double>(a.value.i);
      std::memcpy(s, &v, sizeof v);
      return true;
    }
    default: *s = a.value.i; return a.kind == DSAK_ARG_INT && (p.kind == ScalarKind::kI64 || *s == static_cast<int32_t>(*s));
  }
}

std::string device_name(const dsak_tensor& t) {
  switch (t.device.type) {
    case 1: return "the CPU";
    case kCuda: return cat("cuda:", t.device.id);
    case 3: return "pinned host memory (CUDA)";
    case kRocm: return cat("rocm:", t.device.id);
    case 11: return "pinned host memory (ROCm)";
    case 13: return cat("managed memory (CUDA) of device ", t.device.id);
    default: return cat("DLPack device type ", t.device.type, ", number ", t.device.id);
  }
}

const char* kind_name(int kind) {
  switch (kind) {
    case DSAK_ARG_TENSOR: return "a tensor";
    case DSAK_ARG_INT: return "an integer";
    case DSAK_ARG_FLOAT: return "a float";
    case DSAK_ARG_CHOICE: return "a word";
    case DSAK_ARG_NONE: return "nothing";
    default: return "an unknown kind of argument";
  }
}

std::string dtypes_text(const ParamPlan& p) {
  std::vector<const char*> names;
  for (const ParamPlan::Allowed& a : p.dtypes) names.push_back(a.type.name);
  return join(names, " or ");
}

[[noreturn]] void refuse_tensor(const std::string& who, const ParamPlan& p, const dsak_arg& a, DeviceKey device,
                                bool any_device) {
  if (a.kind == DSAK_ARG_NONE)
    fail(DSAK_ERR_ARGUMENT, who, "found nothing, wanted a tensor of ", dtypes_text(p), "; it is ",
         p.output ? "an output that is always written" : "required", ", pass it");
  if (a.kind != DSAK_ARG_TENSOR || a.value.tensor == nullptr)
    fail(DSAK_ERR_ARGUMENT, who, "found ", a.kind == DSAK_ARG_TENSOR ? "a null tensor" : kind_name(a.kind),
         ", wanted a tensor of ", dtypes_text(p));
  const dsak_tensor& t = *a.value.tensor;
  if (!any_device && !on_device(t, device))
    fail(DSAK_ERR_DEVICE, who, "found a tensor on ", device_name(t), ", wanted ", device_text(device),
         ", where the first tensor of the call is; move it there");
  if (allowed(p, t) == nullptr)
    fail(DSAK_ERR_ARGUMENT, who, "found dtype ", dtype_name(t.dtype.code, t.dtype.bits, t.dtype.lanes), ", wanted ",
         dtypes_text(p), "; cast it before the call");
  if (t.ndim > 0 && t.shape == nullptr) fail(DSAK_ERR_ARGUMENT, who, "found a tensor with a null shape, wanted a valid one");
  if (t.ndim != p.rank && (t.ndim < 0 || t.ndim > 64))
    fail(DSAK_ERR_ARGUMENT, who, "found ", t.ndim, " dimensions, wanted ", p.rank, "; reshape it before the call");
  if (t.ndim != p.rank)
    fail(DSAK_ERR_ARGUMENT, who, "found ", t.ndim, " dimensions (shape ", list_text(t.shape, t.ndim), "), wanted ", p.rank,
         "; reshape it before the call");
  fail(DSAK_ERR_ARGUMENT, who, "found a negative size in shape ", list_text(t.shape, t.ndim), ", wanted sizes of 0 or more");
}

[[noreturn]] void refuse_scalar(const std::string& who, const ParamPlan& p, const dsak_arg& a) {
  std::vector<std::string> words;
  for (const ParamPlan::Choice& c : p.choices) words.push_back(c.word);
  const std::string wanted = p.kind == ScalarKind::kF32   ? "a number"
                             : p.kind == ScalarKind::kI32 ? "a 32-bit integer"
                             : p.kind == ScalarKind::kI64 ? "an integer"
                                                          : cat("one of: ", join(words));
  if (a.kind == DSAK_ARG_NONE) fail(DSAK_ERR_ARGUMENT, who, "found nothing, wanted ", wanted, "; it has no default, pass it");
  if (a.kind == DSAK_ARG_CHOICE && p.kind == ScalarKind::kChoice)
    fail(DSAK_ERR_ARGUMENT, who, "found '", a.value.choice != nullptr ? a.value.choice : "(null)", "', wanted ", wanted);
  if (a.kind == DSAK_ARG_INT && p.kind == ScalarKind::kI32)
    fail(DSAK_ERR_ARGUMENT, who, "found ", a.value.i, ", wanted ", wanted);
  fail(DSAK_ERR_ARGUMENT, who, "found ", kind_name(a.kind), ", wanted ", wanted);
}

}  // namespace

DeviceKey device_of(const Plan& plan, const Arguments& in) {
  for (size_t i = 0; i < in.count && i < plan.params.size(); ++i) {
    const dsak_arg& a = in.args[i];
    const ParamPlan& p = plan.params[i];
    if (a.kind != DSAK_ARG_TENSOR || a.value.tensor == nullptr || !p.tensor) continue;
    const dsak_tensor& t = *a.value.tensor;
    if ((t.device.type != kCuda && t.device.type != kRocm) || t.device.id < 0)
      fail(DSAK_ERR_DEVICE, plan.op->name, ": ", p.name, ": found a tensor on ", device_name(t),
           ", wanted one on a GPU (cuda or rocm); move it there");
    return {t.device.type == kCuda ? Vendor::kNvidia : Vendor::kAmd, t.device.id};
  }
  for (size_t i = 0; i < plan.params.size(); ++i)
    if (plan.params[i].tensor && !plan.params[i].optional)
      refuse_tensor(cat(plan.op->name, ": ", plan.params[i].name, ": "), plan.params[i], in[i], {}, true);
  fail(DSAK_ERR_ARGUMENT, plan.op->name, ": found no tensor among ", in.count, " arguments, wanted at least one");
}

bool gather(const Plan& plan, const Arguments& in, DeviceKey device, int64_t* slots, uintptr_t* bases) noexcept {
  if (in.count > plan.params.size()) return false;
  size_t i = 0;
  for (const ParamPlan& p : plan.params) {
    const dsak_arg& a = in[i++];
    if (!(p.tensor ? gather_tensor(p, a, in, device, slots, bases + p.index) : gather_scalar(p, a, slots))) return false;
  }
  return true;
}

void refuse(const Plan& plan, const Arguments& in, DeviceKey device) {
  if (in.count > plan.params.size())
    fail(DSAK_ERR_ARGUMENT, plan.op->name, ": found ", in.count, " arguments, wanted at most ", plan.params.size());
  int64_t slots[kMaxSlots];
  uintptr_t base = 0;
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const ParamPlan& p = plan.params[i];
    const std::string who = cat(plan.op->name, ": ", p.name, ": ");
    if (p.tensor && !gather_tensor(p, in[i], in, device, slots, &base)) refuse_tensor(who, p, in[i], device, in.any_device);
    if (!p.tensor && !gather_scalar(p, in[i], slots)) refuse_scalar(who, p, in[i]);
  }
  fail(DSAK_ERR_INTERNAL, plan.op->name, ": arguments were refused without a reason");
}

}  // namespace dsak
