// One call of an op: its arguments gathered into slots, then resolved to a candidate, grids and kernel arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device.h"
#include "driver.h"
#include "dsa_kernels.h"
#include "plan.h"

namespace dsak {

// Base addresses of the tensors, by their index.
using Bases = uintptr_t[kMaxTensors];

struct Arguments {
  const dsak_arg* args;
  size_t count;
  bool outputs = true;      // false: read outputs as absent, whatever is there
  bool any_device = false;  // true: do not look at the tensors' device

  const dsak_arg& operator[](size_t i) const { return i < count ? args[i] : kAbsent; }
  static constexpr dsak_arg kAbsent{DSAK_ARG_NONE, {nullptr}};
};

// The device of the first tensor. Throws Error when there is none or it is not a GPU.
DeviceKey device_of(const Plan& plan, const Arguments& in);

// Fill the raw slots and the base addresses. False when presence, kind, dtype, rank or device of an argument is wrong;
// refuse() then says which. Does not allocate.
bool gather(const Plan& plan, const Arguments& in, DeviceKey device, int64_t* slots, uintptr_t* bases) noexcept;
[[noreturn]] void refuse(const Plan& plan, const Arguments& in, DeviceKey device);

// What gathered slots come to. Kept and reused while the raw slots stay the same.
struct Resolution {
  struct Launch {
    const LaunchPlan* plan;
    uint32_t grid[3];
    size_t first_word;
  };
  struct Patch {
    size_t word;
    int tensor;  // -1: the workspace
    int64_t offset;
  };
  // A tensor map, encoded anew when the tensor lies elsewhere than last time.
  struct Map {
    alignas(kTensorMapAlignment) unsigned char opaque[kTensorMapBytes];
    BoxesView boxes;
    int tensor;
    bool encoded = false;
  };
  struct Base {
    int tensor;
    uintptr_t mask;  // bits of the address that must be 0
    const ParamPlan* param;
  };
  const CandidatePlan* candidate = nullptr;
  size_t workspace = 0;
  std::vector<Launch> launches;  // empty grids left out
  std::vector<uint64_t> words;   // kernel arguments of all launches, one word each
  std::vector<void*> params;     // their addresses
  std::vector<Patch> patches;    // words that are addresses
  std::vector<Map> maps;         // arguments that are tensor maps
  std::vector<Base> bases;       // tensors with elements

  explicit Resolution(const Plan& plan);
  Resolution(const Resolution&) = delete;
  Resolution& operator=(const Resolution&) = delete;
};

// Steps of a call, in order; each throws Error. `slots` holds gathered raw slots on entry to bind().
void bind(const Plan& plan, int64_t sm_count, int64_t* slots);  // symbols, defaults, device constants
void check_shapes(const Plan& plan, const int64_t* slots);
void check_layouts(const Plan& plan, const int64_t* slots);
void check_rules(const Plan& plan, const int64_t* slots);
void list_bases(const Plan& plan, const int64_t* slots, Resolution* out);
void choose(const Plan& plan, const int64_t* slots, Resolution* out);  // candidate and workspace
void fill(const Plan& plan, const int64_t* slots, Resolution* out);    // grids and arguments

// Null or misaligned addresses.
[[noreturn]] void refuse_base(const Plan& plan, const Resolution::Base& base, uintptr_t address);

// Why `candidate` does not serve the call; empty when it does.
std::string rejection(const Plan& plan, const CandidatePlan& candidate, const int64_t* slots);

// "[2, 128, 512]" of `count` slots.
std::string list_text(const int64_t* slots, int count);

// What an expression is for; spelled out only in errors.
struct What {
  const char* kind;
  const std::string* name;
};
int64_t evaluate(const Plan& plan, const Expr& e, const int64_t* slots, const What& what);

inline bool is_empty(const ParamPlan& p, const int64_t* slots) {
  for (int i = 0; i < p.rank; ++i)
    if (slots[p.size_slot(i)] == 0) return true;
  return false;
}

}  // namespace dsak
