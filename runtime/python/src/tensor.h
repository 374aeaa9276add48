// Reading Python tensors: the DLPack exchange table, __dlpack__ capsules, __cuda_array_interface__.
#pragma once

#include <Python.h>

#include "dlpack.h"

namespace dsak::python {

constexpr int kMaxRank = 8;

// What one call learns from its tensors besides their layout.
struct Source {
  const dlpack::ExchangeApi* api = nullptr;  // the first table met: it allocates outputs and knows the current stream
  void* stream = nullptr;                    // from __cuda_array_interface__ or an old torch, when `has_stream`
  bool has_stream = false;
};

// How a parameter is described in errors, and which element types opaque bytes may stand for.
struct TensorRequest {
  const char* op;
  const char* name;
  const char* wanted;  // "a bf16 tensor [T, H, 512] on the device"
  const char* dtypes;  // "bf16" or "bf16|e4m3fn"
  bool writable;
};

// Fill `out` from `object`. `*keep` receives a new reference that must live as long as `out` does, or null when `object`
// itself is enough (the fast path). Returns 0, or -1 with a Python error set.
int read_tensor(PyObject* object, const TensorRequest& request, dlpack::Tensor* out, Source* source, PyObject** keep);

// Whether the object looks like a tensor in any of the protocols (for error messages and explain).
bool is_tensor(PyObject* object);

// The stream behind `stream=`: an integer, an object with `cuda_stream` (torch) or `__cuda_stream__`. -1 with an error set.
int read_stream(PyObject* object, void** stream);

// A new tensor of the producer, as a Python object; `out` describes it. -1 with an error set.
int allocate(const Source& source, const char* what, dlpack::Tensor* out, PyObject** object);

// Element types by name ("bf16"), as DLPack code and bits. False for an unknown name.
bool dtype_from_name(const char* name, size_t length, uint8_t* code, uint8_t* bits);
const char* dtype_name(uint8_t code, uint8_t bits);

}  // namespace dsak::python
