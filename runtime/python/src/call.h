// One call of an op, from Python arguments to dsak_arg; everything lies on the C stack.
#pragma once

#include <Python.h>

#include "dsa_kernels.h"
#include "signature.h"
#include "tensor.h"

namespace dsak::python {

// The last inference of an op's outputs. While the sizes and scalars that it read stay the same, so do the outputs.
struct Inferred {
  static constexpr int kMaxWords = kMaxParams * (kMaxRank + 4);
  int words = 0;  // 0: nothing to remember
  int64_t key[kMaxWords];
  size_t count;
  dsak_output outputs[kMaxParams];
};

// What an Op knows that a call needs.
struct Declaration {
  dsak_op* op;
  const char* name;
  const Param* params;
  int count;
  bool returns_none;
  bool needs_workspace;
  Inferred* inferred;  // guarded by the GIL
};

struct Call {
  explicit Call(const Declaration& declaration) : d(declaration) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Each step returns false with a Python error set.
  bool bind(PyObject* const* values, Py_ssize_t positional, PyObject* names);  // arguments to parameters
  bool convert();                                                              // parameters to dsak_arg
  bool find_stream();
  bool allocate_outputs();
  bool find_workspace();
  void imagine_outputs(int32_t device_type);  // missing outputs described but not allocated; for explain
  PyObject* launch();
  PyObject* result();  // the output, or a tuple of the outputs that are present

  // All steps before the launch.
  bool prepare(PyObject* const* values, Py_ssize_t positional, PyObject* names) {
    return bind(values, positional, names) && convert() && find_stream() && (!missing || allocate_outputs()) &&
           (!d.needs_workspace || find_workspace());
  }

  const Declaration& d;
  void* workspace = nullptr;
  void* stream = nullptr;
  dsak_arg args[kMaxParams];

 private:
  bool bind_keyword(PyObject* name, PyObject* value, int* hint);
  bool convert_tensor(int i, PyObject* value);
  bool convert_output(int i, PyObject* value);
  bool convert_float(int i, PyObject* value);
  bool convert_int(int i, PyObject* value);
  bool convert_choice(int i, PyObject* value);
  bool refuse(int i, PyObject* value, const char* todo) const;
  bool may_allocate(const char* what) const;
  int inference_key(int64_t* key) const;
  dsak_status infer(Inferred* out, dsak_error* error) const;
  dlpack::Tensor* describe(const dsak_output& o, decltype(dlpack::Tensor::device) device);
  bool given_workspace(size_t bytes);
  const dlpack::Tensor* first_input() const;

  PyObject* slots[kMaxParams];  // borrowed arguments; an allocated output's own reference once `made`
  bool made[kMaxParams];
  dlpack::Tensor tensors[kMaxParams];
  PyObject* keep[kMaxParams + 1];  // owned: what fallback protocols lend for the duration of the call
  int kept = 0;
  int bound = 0;                // how many of `slots` and `made` are initialised
  int missing = 0;              // outputs to allocate
  int outputs = 0;              // outputs present
  bool foreign_stream = false;  // stream= names another one than the tensors' library works on
  PyObject* stream_object = nullptr;
  PyObject* workspace_object = nullptr;
  PyObject* scratch = nullptr;
  int64_t shapes[kMaxParams][kMaxRank];
  Source source;
};

extern PyObject *g_stream_name, *g_workspace_name;  // interned

}  // namespace dsak::python
