#include "call.h"

#include <cstring>
#include <string>

#include "errors.h"

namespace dsak::python {

PyObject *g_stream_name, *g_workspace_name;

Call::~Call() {
  for (int i = 0; i < bound; ++i)
    if (made[i]) Py_DECREF(slots[i]);
  for (int i = 0; i < kept; ++i) Py_DECREF(keep[i]);
  Py_XDECREF(scratch);
}

// ---- binding ---------------------------------------------------------------------------------------------------------

bool Call::bind(PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  const int n = d.count;
  if (positional > n) {
    raise_format(DSAK_ERR_ARGUMENT, "%s: found %zd positional arguments; wanted at most %d; see help(dsa_kernels.%s)", d.name,
                 positional, n, d.name);
    return false;
  }
  for (int i = 0; i < n; ++i) {
    slots[i] = i < positional ? values[i] : nullptr;
    made[i] = false;
  }
  bound = n;
  if (names == nullptr) return true;
  int hint = static_cast<int>(positional);
  const Py_ssize_t count = PyTuple_GET_SIZE(names);
  for (Py_ssize_t k = 0; k < count; ++k)
    if (!bind_keyword(PyTuple_GET_ITEM(names, k), values[positional + k], &hint)) return false;
  return true;
}

bool Call::bind_keyword(PyObject* name, PyObject* value, int* hint) {
  const int n = d.count;
  int found = -1;
  // Names in source code are interned and mostly in declaration order: the first comparison is usually the last.
  for (int j = 0, i = *hint; j < n; ++j, ++i) {
    if (i >= n) i = 0;
    if (d.params[i].name == name) {
      found = i;
      break;
    }
  }
  if (found < 0) {
    if (name == g_stream_name || PyUnicode_Compare(name, g_stream_name) == 0) {
      stream_object = value;
      return true;
    }
    if (name == g_workspace_name || PyUnicode_Compare(name, g_workspace_name) == 0) {
      workspace_object = value;
      return true;
    }
    for (int i = 0; i < n && found < 0; ++i)
      if (PyUnicode_Compare(name, d.params[i].name) == 0) found = i;
  }
  if (found < 0) {
    std::string known;
    for (int i = 0; i < n; ++i) known += d.params[i].text + ", ";
    raise_format(DSAK_ERR_ARGUMENT, "%s: found unknown keyword '%U'; wanted one of %sstream, workspace; correct the name",
                 d.name, name, known.c_str());
    return false;
  }
  if (slots[found] != nullptr) {
    raise_format(DSAK_ERR_ARGUMENT, "%s: found two values for %s; wanted one; drop the positional or the keyword", d.name,
                 d.params[found].text.c_str());
    return false;
  }
  slots[found] = value;
  *hint = found + 1;
  return true;
}

// ---- conversion ------------------------------------------------------------------------------------------------------

bool Call::refuse(int i, PyObject* value, const char* todo) const {
  raise_format(DSAK_ERR_ARGUMENT, "%s: found %s of type %s; wanted %s; %s", d.name, d.params[i].text.c_str(),
               Py_TYPE(value)->tp_name, d.params[i].wanted.c_str(), todo);
  return false;
}

bool Call::convert() {
  for (int i = 0; i < d.count; ++i) {
    const Param& p = d.params[i];
    PyObject* value = slots[i];
    if (p.kind == Kind::kOutput) {
      if (!convert_output(i, value)) return false;
    } else if (value == nullptr || value == Py_None) {
      args[i].kind = DSAK_ARG_NONE;
      if (p.optional) continue;
      if (value != nullptr) return refuse(i, value, "it is not optional");
      raise_format(DSAK_ERR_ARGUMENT, "%s: found no %s; wanted %s; pass %s=", d.name, p.text.c_str(), p.wanted.c_str(),
                   p.text.c_str());
      return false;
    } else if (p.kind == Kind::kInput) {
      if (!convert_tensor(i, value)) return false;
    } else if (p.kind == Kind::kFloat) {
      if (!convert_float(i, value)) return false;
    } else if (p.kind == Kind::kInt ? !convert_int(i, value) : !convert_choice(i, value)) {
      return false;
    }
  }
  return true;
}

bool Call::convert_tensor(int i, PyObject* value) {
  const Param& p = d.params[i];
  const TensorRequest request{d.name, p.text.c_str(), p.wanted.c_str(), p.dtypes.c_str(), p.kind == Kind::kOutput};
  PyObject* lent;
  const int status = read_tensor(value, request, &tensors[i], &source, &lent);
  if (lent != nullptr) keep[kept++] = lent;
  args[i].kind = DSAK_ARG_TENSOR;
  args[i].value.tensor = &tensors[i];
  return status == 0;
}

bool Call::convert_output(int i, PyObject* value) {
  args[i].kind = DSAK_ARG_NONE;
  const bool absent = value == nullptr || value == Py_None;
  if (value == Py_True || (absent && !d.params[i].optional)) {
    slots[i] = nullptr;
    ++missing;
    ++outputs;
    args[i].value.i = 1;  // to be allocated
    return true;
  }
  args[i].value.i = 0;
  if (absent || value == Py_False) {
    slots[i] = nullptr;
    if (d.params[i].optional) return true;
    return refuse(i, value, "a required output cannot be left out");
  }
  ++outputs;
  return convert_tensor(i, value);
}

bool Call::convert_float(int i, PyObject* value) {
  args[i].kind = DSAK_ARG_FLOAT;
  if (PyFloat_CheckExact(value)) {
    args[i].value.f = PyFloat_AS_DOUBLE(value);
    return true;
  }
  // A tensor of one element would convert too, by waiting for the device: refuse it.
  if (PyBool_Check(value) || PyUnicode_Check(value) || is_tensor(value)) return refuse(i, value, "pass a Python number");
  args[i].value.f = PyFloat_AsDouble(value);
  if (args[i].value.f != -1.0 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return refuse(i, value, "pass a Python number");
}

bool Call::convert_int(int i, PyObject* value) {
  args[i].kind = DSAK_ARG_INT;
  if (PyBool_Check(value) || PyFloat_Check(value) || (!PyLong_Check(value) && (!PyIndex_Check(value) || is_tensor(value))))
    return refuse(i, value, "pass a Python integer");
  args[i].value.i = PyLong_AsLongLong(value);
  if (args[i].value.i != -1 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return refuse(i, value, "pass one that fits 64 bits");
}

bool Call::convert_choice(int i, PyObject* value) {
  args[i].kind = DSAK_ARG_CHOICE;
  if (!PyUnicode_Check(value)) return refuse(i, value, "pass the word as a string");
  args[i].value.choice = PyUnicode_AsUTF8(value);
  return args[i].value.choice != nullptr;
}

// ---- stream, outputs, workspace --------------------------------------------------------------------------------------

const dlpack::Tensor* Call::first_input() const {
  for (int i = 0; i < d.count; ++i)
    if (args[i].kind == DSAK_ARG_TENSOR) return &tensors[i];
  return nullptr;
}

bool Call::find_stream() {
  void* current = source.stream;
  if (source.api != nullptr && source.api->current_stream != nullptr) {
    const dlpack::Tensor* t = first_input();
    const bool device = t->device.type == dlpack::kCuda || t->device.type == dlpack::kRocm;
    // Asking a CPU-only build for a device's stream may abort; the launch refuses CPU tensors anyway.
    if (device && source.api->current_stream(t->device.type, t->device.id, &current) != 0) return false;
  }
  stream = current;
  if (stream_object != nullptr && stream_object != Py_None) {
    if (read_stream(stream_object, &stream) != 0) return false;
    foreign_stream = stream != current;
  } else if (source.has_stream && source.stream != current) {
    raise_format(DSAK_ERR_ARGUMENT,
                 "%s: found tensors at work on two streams; wanted one; synchronise them and pass stream=", d.name);
    return false;
  }
  return true;
}

bool Call::may_allocate(const char* what) const {
  if (!foreign_stream) return true;
  // The library would hand out memory that earlier work on its own current stream may still be using.
  raise_format(DSAK_ERR_ARGUMENT,
               "%s: found stream= other than the current stream of the tensors' library, and no %s; wanted both to agree, or "
               "the memory from the caller; pass %s=, or make the stream current (with torch.cuda.stream(s):)",
               d.name, what, what);
  return false;
}

// What shapes of outputs can depend on, as words; 0 of them when that does not fit in words.
int Call::inference_key(int64_t* key) const {
  int n = 0;
  for (int i = 0; i < d.count; ++i) {
    if (d.params[i].kind == Kind::kOutput) continue;
    key[n++] = args[i].kind;
    if (args[i].kind == DSAK_ARG_CHOICE) return 0;
    if (args[i].kind == DSAK_ARG_INT || args[i].kind == DSAK_ARG_FLOAT) memcpy(&key[n++], &args[i].value, sizeof(int64_t));
    if (args[i].kind != DSAK_ARG_TENSOR) continue;
    const dlpack::Tensor& t = tensors[i];
    if (t.ndim > kMaxRank) return 0;
    memcpy(&key[n++], &t.device, sizeof(int64_t));
    key[n++] = int64_t{t.dtype.code} << 32 | t.dtype.bits << 16 | t.dtype.lanes;
    key[n++] = t.ndim;
    for (int j = 0; j < t.ndim; ++j) key[n++] = t.shape[j];
  }
  return n;
}

dsak_status Call::infer(Inferred* out, dsak_error* error) const {
  int64_t key[Inferred::kMaxWords];
  const int words = inference_key(key);
  const size_t bytes = static_cast<size_t>(words) * sizeof key[0];
  if (words > 0 && out->words == words && memcmp(key, out->key, bytes) == 0) return DSAK_OK;
  out->words = 0;
  for (int i = 0; i < d.count; ++i) out->outputs[i].struct_size = sizeof(dsak_output);
  out->count = static_cast<size_t>(d.count);
  const dsak_status status = dsak_infer(d.op, args, static_cast<size_t>(d.count), out->outputs, &out->count, error);
  if (status != DSAK_OK) return status;
  memcpy(out->key, key, bytes);
  out->words = words;
  return status;
}

// The tensor of an output that is to be made; null for one that was passed or is not wanted.
dlpack::Tensor* Call::describe(const dsak_output& o, decltype(dlpack::Tensor::device) device) {
  const int i = o.param;
  if (args[i].kind != DSAK_ARG_NONE || args[i].value.i == 0) return nullptr;
  for (int j = 0; j < o.ndim; ++j) shapes[i][j] = o.shape[j];
  dlpack::Tensor& t = tensors[i];
  t = {};
  t.device = device;
  t.ndim = o.ndim;
  t.dtype = {o.dtype_code, o.dtype_bits, 1};
  t.shape = shapes[i];
  return &t;
}

bool Call::allocate_outputs() {
  ErrorBuffer error;
  const dsak_status status = infer(d.inferred, &error);
  if (status != DSAK_OK) return raise(error, status) != nullptr;
  const auto device = first_input()->device;  // inferring shapes wanted one
  int wanted[kMaxParams], count = 0;
  for (size_t k = 0; k < d.inferred->count; ++k)
    if (describe(d.inferred->outputs[k], device) != nullptr) wanted[count++] = d.inferred->outputs[k].param;
  // Allocating may let another thread call this op: what was inferred is not read from here on.
  for (int k = 0; k < count; ++k) {
    const int i = wanted[k];
    const char* name = d.params[i].text.c_str();
    if (!may_allocate(name) || allocate(source, name, &tensors[i], &slots[i]) != 0) return false;
    made[i] = true;
    args[i].kind = DSAK_ARG_TENSOR;
    args[i].value.tensor = &tensors[i];
  }
  return true;
}

void Call::imagine_outputs(int32_t device_type) {
  for (int i = 0; i < d.count; ++i)
    if (args[i].kind == DSAK_ARG_TENSOR && device_type != 0) tensors[i].device = {device_type, 0};
  Inferred found;
  // A call whose shapes cannot be inferred is explained as it stands, which says why.
  if (missing == 0 || infer(&found, nullptr) != DSAK_OK) return;
  for (size_t k = 0; k < found.count; ++k) {
    dlpack::Tensor* t = describe(found.outputs[k], first_input()->device);
    if (t == nullptr) continue;
    t->data = reinterpret_cast<void*>(uintptr_t{1} << 20);
    args[found.outputs[k].param].kind = DSAK_ARG_TENSOR;
    args[found.outputs[k].param].value.tensor = t;
  }
}

bool Call::given_workspace(size_t bytes) {
  const TensorRequest request{d.name, "workspace", "a u8 tensor on the device", "u8", true};
  dlpack::Tensor t;
  PyObject* lent;
  Source ignored;
  const int status = read_tensor(workspace_object, request, &t, &ignored, &lent);
  if (lent != nullptr) keep[kept++] = lent;
  if (status != 0) return false;
  const auto wanted = first_input()->device;  // dsak_workspace wanted one
  if (t.device.type != wanted.type || t.device.id != wanted.id) {
    raise_format(
        DSAK_ERR_DEVICE,
        "%s: found a workspace on another device (DLPack type %d, number %d); wanted it where the tensors are (%d, %d)", d.name,
        t.device.type, t.device.id, wanted.type, wanted.id);
    return false;
  }
  int64_t packed = 1;
  for (int j = t.ndim - 1; j >= 0; --j) {
    if (t.strides != nullptr && t.shape[j] > 1 && t.strides[j] != packed) {
      raise_format(DSAK_ERR_ARGUMENT, "%s: found a strided workspace; wanted a contiguous one", d.name);
      return false;
    }
    packed *= t.shape[j];
  }
  int64_t size = t.dtype.bits / 8;
  for (int j = 0; j < t.ndim; ++j) size *= t.shape[j];
  workspace = static_cast<char*>(t.data) + t.byte_offset;
  if (static_cast<uint64_t>(size) >= bytes) return true;
  raise_format(DSAK_ERR_ARGUMENT, "%s: found a workspace of %lld bytes; wanted at least %zu; pass a larger one", d.name,
               static_cast<long long>(size), bytes);
  return false;
}

bool Call::find_workspace() {
  size_t bytes = 0;
  ErrorBuffer error;
  const dsak_status status = dsak_workspace(d.op, args, static_cast<size_t>(d.count), &bytes, &error);
  if (status != DSAK_OK) return raise(error, status) != nullptr;
  if (bytes == 0) return true;
  if (workspace_object != nullptr && workspace_object != Py_None) return given_workspace(bytes);
  if (!may_allocate("workspace")) return false;
  dlpack::Tensor t{};
  int64_t size = static_cast<int64_t>(bytes);
  t.device = first_input()->device;
  t.ndim = 1;
  t.dtype = {1, 8, 1};
  t.shape = &size;
  if (allocate(source, "workspace", &t, &scratch) != 0) return false;
  workspace = static_cast<char*>(t.data) + t.byte_offset;
  return true;
}

// ---- launch ----------------------------------------------------------------------------------------------------------

PyObject* Call::launch() {
  ErrorBuffer error;
  // A full queue blocks in the driver, and a host callback that it waits for may want the GIL.
  PyThreadState* thread = PyEval_SaveThread();
  const dsak_status status = dsak_launch(d.op, args, static_cast<size_t>(d.count), workspace, stream, &error);
  PyEval_RestoreThread(thread);
  if (status != DSAK_OK) return raise(error, status);
  return result();
}

PyObject* Call::result() {
  if (d.returns_none) return Py_NewRef(Py_None);
  PyObject* tuple = outputs > 1 ? PyTuple_New(outputs) : nullptr;
  if (outputs > 1 && tuple == nullptr) return nullptr;
  int k = 0;
  for (int i = 0; i < d.count; ++i) {
    if (d.params[i].kind != Kind::kOutput || slots[i] == nullptr) continue;
    if (tuple == nullptr) return Py_NewRef(slots[i]);
    PyTuple_SET_ITEM(tuple, k++, Py_NewRef(slots[i]));
  }
  return tuple != nullptr ? tuple : Py_NewRef(Py_None);
}

}  // namespace dsak::python
