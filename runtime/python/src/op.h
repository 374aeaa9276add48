// dsa_kernels.Op: the callable behind dsa_kernels.<name>, CPython's vectorcall straight to dsak_launch.
#pragma once

#include <Python.h>

#include <memory>

#include "dsa_kernels.h"

namespace dsak::python {

// An open runtime, shared by the Python object that may close it and the ops that must notice. Never closed implicitly:
// kernels may be in flight when the last reference goes.
struct Handle {
  dsak_runtime* runtime = nullptr;  // null once closed
  int in_use = 0;                   // calls that are inside, some without the GIL; guarded by the GIL
};

// Keeps `handle` from being closed while a call is inside. Made and destroyed with the GIL held.
class InUse {
 public:
  explicit InUse(Handle& handle) : handle_(handle) { ++handle_.in_use; }
  ~InUse() { --handle_.in_use; }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  Handle& handle_;
};

int init_op(PyObject* module);

// A new Op for `op` of `handle`. Null with a Python error set.
PyObject* make_op(std::shared_ptr<Handle> handle, dsak_op* op, const char* name);

// The C handle of an Op object; null with a Python error set when it is something else or closed.
dsak_op* op_handle(PyObject* object);

// What explain() shows for op(*args, **kwargs) on `target` (null: the tensors' device).
PyObject* explain_call(PyObject* op, const char* target, PyObject* args, PyObject* kwargs);

// Nanoseconds per dsak_launch over `count` launches of one bound call: the C interface without Python's share.
PyObject* time_call(PyObject* op, long long count, PyObject* args, PyObject* kwargs);

}  // namespace dsak::python
