// The parts of DLPack 1.x that the launch path reads, written from the specification's memory layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsa_kernels.h"

namespace dsak::python::dlpack {

// A dsak_tensor has the layout of a DLTensor by contract, so one type serves both sides.
using Tensor = dsak_tensor;

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kRocm = 10 };

struct Version {
  uint32_t major, minor;
};

// What a capsule called "dltensor" holds.
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

constexpr uint64_t kReadOnly = 1;

// What a capsule called "dltensor_versioned" holds. Only `deleter` may be touched when version.major differs from ours.
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

using SetError = void (*)(void* context, const char* kind, const char* message);

// The table behind a type's attribute `__dlpack_c_exchange_api__`: how to read, allocate and wrap its tensors without
// Python calls. The producer keeps it alive for the life of the process.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  // an older table, for consumers that do not know this major version
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* error_context, SetError set_error);
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  int (*object_from_managed)(ManagedVersioned* managed, void** out_object);  // steals `managed`
  int (*tensor_from_object)(void* object, Tensor* out);                      // borrowed; may be null in the table
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out_stream);
};

constexpr uint32_t kMajor = 1, kMinor = 3;
constexpr const char* kApiCapsule = "dlpack_exchange_api";

static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24 && offsetof(Tensor, byte_offset) == 40);
static_assert(offsetof(ManagedVersioned, tensor) == 32 && offsetof(ExchangeApi, allocate) == 16);

}  // namespace dsak::python::dlpack
