// dsa_kernels.View: device memory described by hand, for hosts that have an address and no tensor library.
#pragma once

#include <Python.h>

#include "dlpack.h"

namespace dsak::python {

// The type object (created by init_view) and the table that reads it, which has no allocator and no stream.
extern PyTypeObject* g_view_type;
extern const dlpack::ExchangeApi g_view_api;

// Create the type and add it to `module`. -1 with a Python error set.
int init_view(PyObject* module);

}  // namespace dsak::python
