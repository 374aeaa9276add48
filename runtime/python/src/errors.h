// The typed exceptions of dsa_kernels.errors, raised from C++.
#pragma once

#include <Python.h>

#include "dsa_kernels.h"

namespace dsak::python {

// Look the classes of dsa_kernels.errors up, once, at module initialisation. -1 with a Python error set.
int init_errors();

// Set the exception that belongs to `code`, with attribute `code`; always returns null so that callers can return it.
PyObject* raise(dsak_status code, const char* message);

// As above with a printf-like format (PyUnicode_FromFormat's directives).
PyObject* raise_format(dsak_status code, const char* format, ...);

// An error struct ready for a call; the message is left uninitialised on purpose (4 KB on every launch otherwise).
struct ErrorBuffer : dsak_error {
  ErrorBuffer() {
    struct_size = sizeof(dsak_error);
    code = DSAK_OK;
    message[0] = '\0';
  }
};

inline PyObject* raise(const dsak_error& error, dsak_status status) { return raise(status, error.message); }

}  // namespace dsak::python
