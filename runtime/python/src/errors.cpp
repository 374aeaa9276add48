#include "errors.h"

#include <cstdarg>
#include <cstring>

namespace dsak::python {
namespace {

constexpr const char* kClasses[] = {
    nullptr,         "ArgumentError", "UnknownOp",  "NoPack",   "NoCandidate",  "DeviceError", "PackMissing",
    "PackTruncated", "PackDigest",    "PackSchema", "PackArch", "DriverTooOld", "DriverError", "Error",
};
constexpr int kCount = sizeof(kClasses) / sizeof(kClasses[0]);
static_assert(kCount == DSAK_ERR_INTERNAL + 1);

PyObject* g_classes[kCount];

PyObject* class_of(dsak_status code) { return g_classes[code > DSAK_OK && code < kCount ? code : DSAK_ERR_INTERNAL]; }

PyObject* raise_object(dsak_status code, PyObject* message) {
  if (message == nullptr) return nullptr;
  PyObject* exception = PyObject_CallOneArg(class_of(code), message);
  Py_DECREF(message);
  if (exception == nullptr) return nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
  return nullptr;
}

}  // namespace

int init_errors() {
  PyObject* module = PyImport_ImportModule("dsa_kernels.errors");
  if (module == nullptr) return -1;
  for (int code = 1; code < kCount; ++code) {
    g_classes[code] = PyObject_GetAttrString(module, kClasses[code]);
    if (g_classes[code] == nullptr) break;
  }
  Py_DECREF(module);
  return PyErr_Occurred() ? -1 : 0;
}

PyObject* raise(dsak_status code, const char* message) {
  // A message that was cut at the end of its buffer may end inside a character.
  return raise_object(code, PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(strlen(message)), "replace"));
}

PyObject* raise_format(dsak_status code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  PyObject* message = PyUnicode_FromFormatV(format, args);
  va_end(args);
  return raise_object(code, message);
}

}  // namespace dsak::python
