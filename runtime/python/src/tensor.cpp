#include "tensor.h"

#include <cstdio>
#include <cstring>

#include "errors.h"
#include "view.h"

namespace dsak::python {
namespace {

using dlpack::ExchangeApi;

struct Dtype {
  const char* name;
  uint8_t code, bits;
};
constexpr Dtype kDtypes[] = {{"bf16", 4, 16}, {"f16", 2, 16}, {"f32", 2, 32},    {"i32", 0, 32},
                             {"i64", 0, 64},  {"u8", 1, 8},   {"e4m3fn", 10, 8}, {"e4m3fnuz", 11, 8}};

// ---- the table of a type, looked up once per type --------------------------------------------------------------------

struct TypeEntry {
  PyTypeObject* type;
  const ExchangeApi* api;  // null: this type has none
};
constexpr int kTypes = 8;
TypeEntry g_types[kTypes];
int g_next_type;

const ExchangeApi* find_api(PyTypeObject* type) {
  // View does not publish its table: a published one must be able to allocate.
  if (type == g_view_type) return &g_view_api;
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, dlpack::kApiCapsule));
  Py_DECREF(capsule);  // the table outlives its capsule by contract
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->version.major != dlpack::kMajor) api = api->previous;
  return api != nullptr && api->tensor_from_object != nullptr ? api : nullptr;
}

const ExchangeApi* api_of(PyTypeObject* type) {
  for (const TypeEntry& entry : g_types)
    if (entry.type == type) return entry.api;
  const ExchangeApi* api = find_api(type);
  TypeEntry& slot = g_types[g_next_type];
  g_next_type = (g_next_type + 1) % kTypes;
  Py_INCREF(type);  // a cached type must not be freed and its address reused
  Py_XDECREF(slot.type);
  slot = {type, api};
  return api;
}

// ---- errors ----------------------------------------------------------------------------------------------------------

int refuse(const TensorRequest& r, PyObject* object, const char* todo) {
  raise_format(DSAK_ERR_ARGUMENT, "%s: found %s of type %s; wanted %s; %s", r.op, r.name, Py_TYPE(object)->tp_name, r.wanted,
               todo);
  return -1;
}

// Turn the producer's own exception into ours, keeping its first line and the exception as __cause__.
int refuse_unreadable(const TensorRequest& r, PyObject* object) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* text = value != nullptr ? PyObject_Str(value) : nullptr;
  PyErr_Clear();
  Py_ssize_t size = 0;
  const char* line = text != nullptr ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  PyErr_Clear();
  char first[200] = "no reason given";
  if (line != nullptr) {
    size_t n = strcspn(line, "\n");
    if (n >= sizeof(first)) n = sizeof(first) - 1;
    memcpy(first, line, n);
    first[n] = '\0';
  }
  raise_format(DSAK_ERR_ARGUMENT,
               "%s: found %s, a %s that its library does not export through DLPack (%s); wanted %s; pass a real device tensor",
               r.op, r.name, Py_TYPE(object)->tp_name, first, r.wanted);
  PyObject *type2, *value2, *trace2;
  PyErr_Fetch(&type2, &value2, &trace2);
  PyErr_NormalizeException(&type2, &value2, &trace2);
  if (value2 != nullptr && value != nullptr) {
    PyException_SetCause(value2, value);  // steals
    value = nullptr;
  }
  PyErr_Restore(type2, value2, trace2);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  Py_XDECREF(text);
  return -1;
}

// ---- __dlpack__ ------------------------------------------------------------------------------------------------------

PyObject* call_dlpack(PyObject* object, bool on_device) {
  PyObject* method = PyObject_GetAttrString(object, "__dlpack__");
  if (method == nullptr) return nullptr;
  PyObject* args = PyTuple_New(0);
  // stream=-1: the kernel is launched on the producer's stream or on one that the caller chose, so nothing is to be awaited.
  PyObject* kwargs = on_device ? Py_BuildValue("{s:i,s:(II)}", "stream", -1, "max_version", dlpack::kMajor, dlpack::kMinor)
                               : Py_BuildValue("{s:(II)}", "max_version", dlpack::kMajor, dlpack::kMinor);
  PyObject* capsule = args != nullptr && kwargs != nullptr ? PyObject_Call(method, args, kwargs) : nullptr;
  if (capsule == nullptr && args != nullptr && kwargs != nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();  // a producer from before version 1 does not know max_version
    if (PyDict_DelItemString(kwargs, "max_version") == 0) capsule = PyObject_Call(method, args, kwargs);
  }
  Py_XDECREF(args);
  Py_XDECREF(kwargs);
  Py_DECREF(method);
  return capsule;
}

bool on_device(PyObject* object) {
  PyObject* pair = PyObject_CallMethod(object, "__dlpack_device__", nullptr);
  if (pair == nullptr) {
    PyErr_Clear();
    return true;
  }
  long type = dlpack::kCuda;
  if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) type = PyLong_AsLong(PyTuple_GET_ITEM(pair, 0));
  PyErr_Clear();
  Py_DECREF(pair);
  return type == dlpack::kCuda || type == dlpack::kRocm;
}

// A torch without the table still has a current stream.
int torch_stream(PyObject* object, Source* source) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* torch = PyDict_GetItemString(modules, "torch");
  PyObject* tensor = torch != nullptr ? PyObject_GetAttrString(torch, "Tensor") : nullptr;
  const int is_torch = tensor != nullptr ? PyObject_IsInstance(object, tensor) : 0;
  Py_XDECREF(tensor);
  PyErr_Clear();
  if (is_torch <= 0) return 0;
  PyObject* cuda = PyObject_GetAttrString(torch, "cuda");
  PyObject* device = cuda != nullptr ? PyObject_GetAttrString(object, "device") : nullptr;
  PyObject* stream = device != nullptr ? PyObject_CallMethod(cuda, "current_stream", "O", device) : nullptr;
  Py_XDECREF(device);
  Py_XDECREF(cuda);
  if (stream == nullptr) return -1;
  const int status = read_stream(stream, &source->stream);
  Py_DECREF(stream);
  source->has_stream = status == 0;
  return status;
}

int read_capsule(PyObject* object, const TensorRequest& r, dlpack::Tensor* out, Source* source, PyObject** keep) {
  const bool device = on_device(object);
  PyObject* capsule = call_dlpack(object, device);
  if (capsule == nullptr) return refuse_unreadable(r, object);
  *keep = capsule;  // not renamed, hence its destructor gives the tensor back
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* managed = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajor)
      return refuse(r, object, "its DLPack major version is not 1: pass another tensor type");
    if (r.writable && (managed->flags & dlpack::kReadOnly)) return refuse(r, object, "it is read-only: pass a writable tensor");
    *out = managed->tensor;
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    *out = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
  } else {
    return refuse(r, object, "its __dlpack__() gave no DLPack capsule");
  }
  const bool knows_stream = source->has_stream || (source->api != nullptr && source->api->current_stream != nullptr);
  if (device && !knows_stream) return torch_stream(object, source);
  return 0;
}

// ---- __cuda_array_interface__ ----------------------------------------------------------------------------------------

// Opaque bytes ("V2", and "u1" for FP8) stand for the parameter's only element type of that width, when there is one.
bool resolve_opaque(const char* dtypes, uint8_t bits, dlpack::Tensor* out) {
  int found = 0;
  for (const char* p = dtypes; *p != '\0';) {
    const size_t n = strcspn(p, "|");
    uint8_t code, width;
    if (dtype_from_name(p, n, &code, &width) && width == bits) {
      out->dtype = {code, width, 1};
      ++found;
    }
    p += n + (p[n] == '|');
  }
  return found == 1;
}

bool read_typestr(const char* s, const char* dtypes, dlpack::Tensor* out) {
  if (strlen(s) != 3 || s[0] == '>' || s[2] < '1' || s[2] > '8') return false;
  const auto bits = static_cast<uint8_t>(8 * (s[2] - '0'));
  switch (s[1]) {
    case 'i': out->dtype = {0, bits, 1}; return true;
    case 'f': out->dtype = {2, bits, 1}; return bits > 8 || resolve_opaque(dtypes, bits, out);
    case 'V': return resolve_opaque(dtypes, bits, out);
    case 'u':
      out->dtype = {1, bits, 1};
      if (bits == 8 && strstr(dtypes, "u8") == nullptr) resolve_opaque(dtypes, bits, out);
      return true;
    default: return false;
  }
}

int read_dims(PyObject* tuple, int64_t* out, int ndim) {
  for (int i = 0; i < ndim; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (out[i] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

int read_cai_stream(PyObject* interface, const TensorRequest& r, PyObject* object, Source* source) {
  PyObject* value = PyDict_GetItemString(interface, "stream");
  if (value == nullptr || value == Py_None) return 0;
  void* stream;
  if (read_stream(value, &stream) != 0) return -1;
  if (stream == reinterpret_cast<void*>(1)) stream = nullptr;  // 1 is the legacy default stream, as null is
  if (source->has_stream && source->stream != stream)
    return refuse(r, object,
                  "its work is on another stream than that of an earlier argument: pass stream= after synchronising");
  source->stream = stream;
  source->has_stream = true;
  return 0;
}

int read_cai(PyObject* object, PyObject* interface, const TensorRequest& r, dlpack::Tensor* out, Source* source,
             PyObject** keep) {
  constexpr const char* kBroken =
      "its __cuda_array_interface__ does not follow version 3 of the protocol, or its element type is not one of these";
  if (!PyDict_Check(interface)) return refuse(r, object, kBroken);
  PyObject* shape = PyDict_GetItemString(interface, "shape");
  PyObject* strides = PyDict_GetItemString(interface, "strides");
  PyObject* data = PyDict_GetItemString(interface, "data");
  PyObject* typestr = PyDict_GetItemString(interface, "typestr");
  if (shape == nullptr || !PyTuple_Check(shape) || data == nullptr || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2 ||
      typestr == nullptr || !PyUnicode_Check(typestr))
    return refuse(r, object, kBroken);
  const char* type = PyUnicode_AsUTF8(typestr);
  const auto ndim = static_cast<int>(PyTuple_GET_SIZE(shape));
  if (type == nullptr || ndim > kMaxRank || !read_typestr(type, r.dtypes, out)) return refuse(r, object, kBroken);
  const bool strided = strides != nullptr && strides != Py_None;
  if (strided && (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != ndim)) return refuse(r, object, kBroken);

  PyObject* storage = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(2 * kMaxRank * sizeof(int64_t)));
  if (storage == nullptr) return -1;
  *keep = storage;
  auto* dims = reinterpret_cast<int64_t*>(PyBytes_AS_STRING(storage));
  if (read_dims(shape, dims, ndim) != 0) return -1;
  if (strided) {
    if (read_dims(strides, dims + kMaxRank, ndim) != 0) return -1;
    const int bytes = out->dtype.bits / 8;
    for (int i = 0; i < ndim; ++i) {
      if (dims[kMaxRank + i] % bytes != 0) return refuse(r, object, "a stride is no multiple of the element size");
      dims[kMaxRank + i] /= bytes;
    }
  }
  out->data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0));
  if (out->data == nullptr && PyErr_Occurred()) return -1;
  const int read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
  if (read_only < 0) return -1;
  if (r.writable && read_only) return refuse(r, object, "it is read-only: pass a writable tensor");
  out->shape = dims;
  out->strides = strided ? dims + kMaxRank : nullptr;
  out->ndim = ndim;
  out->byte_offset = 0;
  // The protocol names no device; the driver knows which one owns the address, and 0 is right on hosts that show one.
  out->device = {dlpack::kCuda, 0};
  PyObject* device = PyObject_GetAttrString(object, "device_id");
  if (device != nullptr && PyLong_Check(device)) out->device.id = static_cast<int32_t>(PyLong_AsLong(device));
  Py_XDECREF(device);
  PyErr_Clear();
  return read_cai_stream(interface, r, object, source);
}

int read_slow(PyObject* object, const TensorRequest& r, dlpack::Tensor* out, Source* source, PyObject** keep) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (PyObject_HasAttrString(type, "__dlpack__")) return read_capsule(object, r, out, source, keep);
  PyObject* interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
  if (interface == nullptr) {
    PyErr_Clear();
    return refuse(r, object, "pass a tensor with DLPack (torch, cupy, jax, dsa_kernels.View) or __cuda_array_interface__");
  }
  const int status = read_cai(object, interface, r, out, source, keep);
  Py_DECREF(interface);
  return status;
}

// Why the producer could not allocate. It may call back without the GIL, so this only takes notes.
struct Refusal {
  char text[256] = "no reason given";
};

void note_refusal(void* context, const char* kind, const char* message) {
  auto* refusal = static_cast<Refusal*>(context);
  snprintf(refusal->text, sizeof refusal->text, "%s: %s", kind, message);
}

}  // namespace

bool dtype_from_name(const char* name, size_t length, uint8_t* code, uint8_t* bits) {
  for (const Dtype& d : kDtypes) {
    if (strlen(d.name) != length || memcmp(d.name, name, length) != 0) continue;
    *code = d.code;
    *bits = d.bits;
    return true;
  }
  return false;
}

const char* dtype_name(uint8_t code, uint8_t bits) {
  for (const Dtype& d : kDtypes)
    if (d.code == code && d.bits == bits) return d.name;
  return nullptr;
}

int read_tensor(PyObject* object, const TensorRequest& request, dlpack::Tensor* out, Source* source, PyObject** keep) {
  *keep = nullptr;
  const ExchangeApi* api = api_of(Py_TYPE(object));
  if (api == nullptr) return read_slow(object, request, out, source, keep);
  if (api->tensor_from_object(object, out) != 0) return refuse_unreadable(request, object);
  // Prefer a table that can allocate: a View among torch tensors must not take torch's place.
  if (source->api == nullptr || (source->api->allocate == nullptr && api->allocate != nullptr)) source->api = api;
  return 0;
}

bool is_tensor(PyObject* object) {
  return api_of(Py_TYPE(object)) != nullptr ||
         PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__dlpack__") ||
         PyObject_HasAttrString(object, "__cuda_array_interface__");
}

int read_stream(PyObject* object, void** stream) {
  PyObject* value = nullptr;
  if (PyLong_Check(object)) {
    value = Py_NewRef(object);
  } else if ((value = PyObject_GetAttrString(object, "cuda_stream")) == nullptr) {
    PyErr_Clear();
    PyObject* pair = PyObject_GetAttrString(object, "__cuda_stream__");
    if (pair != nullptr && PyCallable_Check(pair)) {
      PyObject* result = PyObject_CallNoArgs(pair);
      Py_DECREF(pair);
      pair = result;
      if (pair == nullptr) return -1;
    }
    PyErr_Clear();
    if (pair != nullptr && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) value = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    Py_XDECREF(pair);
  }
  if (value == nullptr || !PyLong_Check(value) || PyBool_Check(value)) {
    Py_XDECREF(value);
    raise_format(DSAK_ERR_ARGUMENT,
                 "found stream of type %s; wanted an integer handle, or an object with cuda_stream or __cuda_stream__; "
                 "pass torch.cuda.current_stream() or its address",
                 Py_TYPE(object)->tp_name);
    return -1;
  }
  *stream = PyLong_AsVoidPtr(value);
  Py_DECREF(value);
  return *stream == nullptr && PyErr_Occurred() ? -1 : 0;
}

int allocate(const Source& source, const char* what, dlpack::Tensor* out, PyObject** object) {
  if (source.api == nullptr || source.api->allocate == nullptr || source.api->object_from_managed == nullptr) {
    raise_format(DSAK_ERR_ARGUMENT,
                 "%s: found none, and inputs whose library cannot allocate through DLPack; wanted it from the caller; pass %s=",
                 what, what);
    return -1;
  }
  // The producer may change nothing in the prototype, but its type is not const.
  dlpack::ManagedVersioned* managed = nullptr;
  Refusal refusal;
  if (source.api->allocate(out, &managed, &refusal, note_refusal) != 0 || managed == nullptr) {
    PyErr_Clear();
    raise_format(DSAK_ERR_DEVICE,
                 "%s: found no memory (%s); wanted it allocated by the library of the input tensors; free memory or pass %s=",
                 what, refusal.text, what);
    return -1;
  }
  dlpack::Tensor tensor = managed->tensor;
  void* result = nullptr;
  if (source.api->object_from_managed(managed, &result) != 0) return -1;
  // `managed` and its shape belong to the new object now; the caller's shape is as good, and fresh tensors are packed.
  tensor.shape = out->shape;
  tensor.strides = nullptr;
  *out = tensor;
  *object = static_cast<PyObject*>(result);
  return 0;
}

}  // namespace dsak::python
