#include "view.h"

#include <cstring>

#include "errors.h"
#include "tensor.h"

namespace dsak::python {

PyTypeObject* g_view_type;

namespace {

struct View {
  PyObject base;
  dlpack::Tensor tensor;
  int64_t dims[2 * kMaxRank];  // shape, then strides
  PyObject* owner;
};

int read_dims(PyObject* sequence, const char* what, int64_t* out, int* count) {
  PyObject* fast = PySequence_Fast(sequence, "found a shape or strides of the wrong type; wanted a sequence of integers");
  if (fast == nullptr) return -1;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  if (n > kMaxRank)
    raise_format(DSAK_ERR_ARGUMENT, "View: found %zd dimensions in %s; wanted at most %d; reshape", n, what, kMaxRank);
  for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); ++i) {
    out[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
    if (out[i] < 0 && !PyErr_Occurred())
      raise_format(DSAK_ERR_ARGUMENT, "View: found %lld in %s; wanted no negative number; correct it",
                   static_cast<long long>(out[i]), what);
  }
  Py_DECREF(fast);
  *count = static_cast<int>(n);
  return PyErr_Occurred() ? -1 : 0;
}

int fill_strides(View* view, PyObject* strides) {
  dlpack::Tensor& t = view->tensor;
  if (strides != nullptr && strides != Py_None) {
    int count;
    if (read_dims(strides, "strides", t.strides, &count) != 0) return -1;
    if (count == t.ndim) return 0;
    raise_format(DSAK_ERR_ARGUMENT, "View: found %d strides for %d dimensions; wanted one each, in elements; correct them",
                 count, t.ndim);
    return -1;
  }
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.strides[i] = step;
    step *= t.shape[i] > 0 ? t.shape[i] : 1;
  }
  return 0;
}

PyObject* view_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"address", "shape", "dtype", "device", "strides", "vendor", "owner", nullptr};
  PyObject *address, *shape, *strides = nullptr, *owner = nullptr;
  const char *dtype, *vendor = "nvidia";
  int device = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOs|iOsO:View", const_cast<char**>(keywords), &address, &shape, &dtype,
                                   &device, &strides, &vendor, &owner))
    return nullptr;
  auto* view = reinterpret_cast<View*>(type->tp_alloc(type, 0));
  if (view == nullptr) return nullptr;
  dlpack::Tensor& t = view->tensor;
  t.shape = view->dims;
  t.strides = view->dims + kMaxRank;
  t.dtype.lanes = 1;
  t.data = PyLong_AsVoidPtr(address);
  const bool amd = strcmp(vendor, "amd") == 0;
  t.device = {amd ? dlpack::kRocm : dlpack::kCuda, device};
  if (PyErr_Occurred()) {
    // not an integer: PyLong_AsVoidPtr said so
  } else if (!dtype_from_name(dtype, strlen(dtype), &t.dtype.code, &t.dtype.bits)) {
    raise_format(DSAK_ERR_ARGUMENT,
                 "View: found dtype '%s'; wanted bf16, f16, f32, i32, i64, u8, e4m3fn or e4m3fnuz; correct it", dtype);
  } else if (!amd && strcmp(vendor, "nvidia") != 0) {
    raise_format(DSAK_ERR_ARGUMENT, "View: found vendor '%s'; wanted 'nvidia' or 'amd'; correct it", vendor);
  } else if (read_dims(shape, "shape", t.shape, &t.ndim) == 0 && fill_strides(view, strides) == 0) {
    view->owner = Py_XNewRef(owner);
    return reinterpret_cast<PyObject*>(view);
  }
  Py_DECREF(view);
  return nullptr;
}

void view_free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_CLEAR(reinterpret_cast<View*>(self)->owner);
  type->tp_free(self);
  Py_DECREF(type);
}

int view_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<View*>(self)->owner);
  return 0;
}

int view_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<View*>(self)->owner);
  return 0;
}

const dlpack::Tensor& tensor_of(PyObject* self) { return reinterpret_cast<View*>(self)->tensor; }

PyObject* dims_tuple(const int64_t* dims, int n) {
  PyObject* tuple = PyTuple_New(n);
  for (int i = 0; tuple != nullptr && i < n; ++i) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(dims[i]));
  return tuple;
}

PyObject* get_address(PyObject* self, void*) { return PyLong_FromVoidPtr(tensor_of(self).data); }
PyObject* get_shape(PyObject* self, void*) { return dims_tuple(tensor_of(self).shape, tensor_of(self).ndim); }
PyObject* get_strides(PyObject* self, void*) { return dims_tuple(tensor_of(self).strides, tensor_of(self).ndim); }
PyObject* get_device(PyObject* self, void*) { return PyLong_FromLong(tensor_of(self).device.id); }
PyObject* get_dtype(PyObject* self, void*) {
  return PyUnicode_FromString(dtype_name(tensor_of(self).dtype.code, tensor_of(self).dtype.bits));
}
PyObject* get_vendor(PyObject* self, void*) {
  return PyUnicode_FromString(tensor_of(self).device.type == dlpack::kRocm ? "amd" : "nvidia");
}
PyObject* get_owner(PyObject* self, void*) {
  PyObject* owner = reinterpret_cast<View*>(self)->owner;
  return Py_NewRef(owner != nullptr ? owner : Py_None);
}

PyObject* view_repr(PyObject* self) {
  PyObject* shape = get_shape(self, nullptr);
  if (shape == nullptr) return nullptr;
  const dlpack::Tensor& t = tensor_of(self);
  PyObject* text =
      PyUnicode_FromFormat("View(%p, %R, '%s', device=%d)", t.data, shape, dtype_name(t.dtype.code, t.dtype.bits), t.device.id);
  Py_DECREF(shape);
  return text;
}

int view_tensor(void* object, dlpack::Tensor* out) {
  *out = tensor_of(static_cast<PyObject*>(object));
  return 0;
}

PyGetSetDef g_getset[] = {
    {"address", get_address, nullptr, "Device address, an int.", nullptr},
    {"shape", get_shape, nullptr, "Sizes, a tuple.", nullptr},
    {"strides", get_strides, nullptr, "Strides in elements, a tuple.", nullptr},
    {"dtype", get_dtype, nullptr, "Element type by name, such as 'bf16'.", nullptr},
    {"device", get_device, nullptr, "Index of the device.", nullptr},
    {"vendor", get_vendor, nullptr, "'nvidia' or 'amd'.", nullptr},
    {"owner", get_owner, nullptr, "What keeps the memory alive, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

constexpr const char* kDoc =
    "View(address, shape, dtype, device=0, strides=None, vendor='nvidia', owner=None)\n--\n\n"
    "Device memory described by hand, for hosts without a tensor library: an address, sizes, an element type by name\n"
    "(bf16, f16, f32, i32, i64, u8, e4m3fn, e4m3fnuz), the device's index and, unless packed, strides in elements.\n\n"
    "Nothing is copied, allocated or checked here; `owner` is kept alive as long as the view. Ops launch on the default\n"
    "stream unless given stream=, and want every output passed.";

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(view_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(view_free)},
    {Py_tp_traverse, reinterpret_cast<void*>(view_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(view_clear)},
    {Py_tp_repr, reinterpret_cast<void*>(view_repr)},
    {Py_tp_getset, g_getset},
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {0, nullptr},
};
PyType_Spec g_spec = {"dsa_kernels.View", sizeof(View), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                      g_slots};

}  // namespace

const dlpack::ExchangeApi g_view_api = {
    {dlpack::kMajor, dlpack::kMinor}, nullptr, nullptr, nullptr, nullptr, view_tensor, nullptr};

int init_view(PyObject* module) {
  g_view_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  if (g_view_type == nullptr) return -1;
  return PyModule_AddObjectRef(module, "View", reinterpret_cast<PyObject*>(g_view_type));
}

}  // namespace dsak::python
