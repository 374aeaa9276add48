#include "op.h"

#include <structmember.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "core.h"
#include "errors.h"
#include "signature.h"

namespace dsak::python {
namespace {

PyTypeObject* g_op_type;

// The parts with constructors, behind one pointer because CPython allocates the object.
struct State {
  std::shared_ptr<Handle> handle;
  std::string name;
  std::vector<Param> params;
  Declaration declaration{};
  std::unique_ptr<Inferred> inferred = std::make_unique<Inferred>();

  State() = default;
  State(const State& other) : handle(other.handle), name(other.name), params(other.params), declaration(other.declaration) {}
};

struct Op {
  PyObject base;
  vectorcallfunc vectorcall;
  State* state;
};

State& state_of(PyObject* self) { return *reinterpret_cast<Op*>(self)->state; }

bool is_open(const State& state) {
  if (state.handle->runtime != nullptr) return true;
  raise_format(DSAK_ERR_INTERNAL, "%s: found a closed runtime; wanted an open one; keep it open while its ops are used",
               state.name.c_str());
  return false;
}

PyObject* op_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  const State& state = state_of(self);
  if (!is_open(state)) return nullptr;
  const InUse in_use(*state.handle);
  Call call(state.declaration);
  if (!call.prepare(args, PyVectorcall_NARGS(nargsf), names)) return nullptr;
  return call.launch();
}

void op_free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Op*>(self)->state;
  type->tp_free(self);
  Py_DECREF(type);
}

// An op is found on a class as it is found on a module: it does not bind, as builtin functions do not.
PyObject* op_get(PyObject* self, PyObject*, PyObject*) { return Py_NewRef(self); }

PyObject* op_repr(PyObject* self) { return PyUnicode_FromFormat("<op %s>", state_of(self).name.c_str()); }

PyObject* get_name(PyObject* self, void*) { return PyUnicode_FromString(state_of(self).name.c_str()); }
PyObject* get_module(PyObject*, void*) { return PyUnicode_FromString("dsa_kernels"); }

PyObject* get_declaration(PyObject* self, void*) {
  const State& state = state_of(self);
  return is_open(state) ? PyUnicode_FromString(dsak_signature(state.declaration.op)) : nullptr;
}

// Help text and signature are written in Python, where they are built only when somebody asks.
PyObject* call_docs(PyObject* self, const char* function) {
  PyObject* module = PyImport_ImportModule("dsa_kernels._docs");
  PyObject* result = module != nullptr ? PyObject_CallMethod(module, function, "O", self) : nullptr;
  Py_XDECREF(module);
  return result;
}
PyObject* get_doc(PyObject* self, void*) { return call_docs(self, "docstring"); }
PyObject* get_signature(PyObject* self, void*) { return call_docs(self, "signature"); }
PyObject* get_text_signature(PyObject* self, void*) { return call_docs(self, "text_signature"); }

PyObject* get_info(PyObject* self, void*) {
  const State& state = state_of(self);
  if (!is_open(state)) return nullptr;
  char* json = dsak_info(state.handle->runtime);
  if (json == nullptr) return PyErr_NoMemory();
  PyObject* text = PyUnicode_FromString(json);
  dsak_free(json);
  return text;
}

PyObject* wrap(std::unique_ptr<State> state) {
  state->declaration.name = state->name.c_str();
  state->declaration.params = state->params.data();
  state->declaration.count = static_cast<int>(state->params.size());
  state->declaration.inferred = state->inferred.get();
  auto* self = reinterpret_cast<Op*>(g_op_type->tp_alloc(g_op_type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = op_call;
  self->state = state.release();
  return reinterpret_cast<PyObject*>(self);
}

// The two forms that torch.library wants, without a Python frame around each call.
PyObject* functional(PyObject* self, PyObject*) {
  auto state = std::make_unique<State>(state_of(self));
  for (Param& p : state->params)
    if (p.kind == Kind::kOutput) p.optional = false;
  return wrap(std::move(state));
}
PyObject* writing(PyObject* self, PyObject*) {
  auto state = std::make_unique<State>(state_of(self));
  state->declaration.returns_none = true;
  return wrap(std::move(state));
}

PyMethodDef g_methods[] = {
    {"functional", functional, METH_NOARGS, "The op with every output allocated and returned unless it is passed."},
    {"writing", writing, METH_NOARGS, "The op returning None."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef g_getset[] = {
    {"__name__", get_name, nullptr, nullptr, nullptr},
    {"__qualname__", get_name, nullptr, nullptr, nullptr},
    {"__module__", get_module, nullptr, nullptr, nullptr},
    {"__doc__", get_doc, nullptr, nullptr, nullptr},
    {"__signature__", get_signature, nullptr, nullptr, nullptr},
    {"__text_signature__", get_text_signature, nullptr, nullptr, nullptr},
    {"declaration", get_declaration, nullptr, "The parameters as the manifest declares them, JSON.", nullptr},
    {"info", get_info, nullptr, "What the op's packs hold, JSON.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef g_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Op, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot g_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(op_free)},
    {Py_tp_descr_get, reinterpret_cast<void*>(op_get)},
    {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
    {Py_tp_getset, g_getset},
    {Py_tp_members, g_members},
    {Py_tp_methods, g_methods},
    {0, nullptr},
};
PyType_Spec g_spec = {
    "dsa_kernels.Op", sizeof(Op), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, g_slots};

// A (args, kwargs) pair in the layout that vectorcall has.
struct Flat {
  Flat(PyObject* args, PyObject* kwargs) : positional(PyTuple_GET_SIZE(args)) {
    for (Py_ssize_t i = 0; i < positional; ++i) values.push_back(PyTuple_GET_ITEM(args, i));
    names = PyTuple_New(PyDict_Size(kwargs));
    PyObject *key, *value;
    Py_ssize_t at = 0, k = 0;
    while (names != nullptr && PyDict_Next(kwargs, &at, &key, &value)) {
      PyTuple_SET_ITEM(names, k++, Py_NewRef(key));
      values.push_back(value);
    }
  }
  ~Flat() { Py_XDECREF(names); }
  Flat(const Flat&) = delete;
  Flat& operator=(const Flat&) = delete;

  std::vector<PyObject*> values;
  Py_ssize_t positional;
  PyObject* names;
};

}  // namespace

int init_op(PyObject* module) {
  g_stream_name = PyUnicode_InternFromString("stream");
  g_workspace_name = PyUnicode_InternFromString("workspace");
  g_op_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  if (g_op_type == nullptr || g_stream_name == nullptr || g_workspace_name == nullptr) return -1;
  return PyModule_AddObjectRef(module, "Op", reinterpret_cast<PyObject*>(g_op_type));
}

PyObject* make_op(std::shared_ptr<Handle> handle, dsak_op* op, const char* name) {
  auto state = std::make_unique<State>();
  state->handle = std::move(handle);
  state->name = name;
  if (!parse_signature(name, dsak_signature(op), &state->params)) return nullptr;
  state->declaration.op = op;
  state->declaration.needs_workspace = needs_workspace(*op);
  return wrap(std::move(state));
}

dsak_op* op_handle(PyObject* object) {
  if (!PyObject_TypeCheck(object, g_op_type)) {
    PyErr_Format(PyExc_TypeError, "found %s; wanted a dsa_kernels.Op; pass dsa_kernels.<name>", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  const State& state = state_of(object);
  return is_open(state) ? state.declaration.op : nullptr;
}

PyObject* explain_call(PyObject* op, const char* target, PyObject* args, PyObject* kwargs) {
  if (op_handle(op) == nullptr) return nullptr;
  const Declaration& d = state_of(op).declaration;
  const InUse in_use(*state_of(op).handle);
  const Flat flat(args, kwargs);
  Call call(d);
  if (!call.bind(flat.values.data(), flat.positional, flat.names) || !call.convert()) return nullptr;
  call.imagine_outputs(target != nullptr ? device_type(*d.op, target) : 0);
  char* text = nullptr;
  ErrorBuffer error;
  const dsak_status status = dsak_explain(d.op, target, call.args, static_cast<size_t>(d.count), &text, &error);
  if (status != DSAK_OK) return raise(error, status);
  PyObject* result = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "replace");
  dsak_free(text);
  return result;
}

PyObject* time_call(PyObject* op, long long count, PyObject* args, PyObject* kwargs) {
  if (op_handle(op) == nullptr) return nullptr;
  const Declaration& d = state_of(op).declaration;
  const InUse in_use(*state_of(op).handle);
  const Flat flat(args, kwargs);
  Call call(d);
  if (!call.prepare(flat.values.data(), flat.positional, flat.names)) return nullptr;
  ErrorBuffer error;
  dsak_status status = DSAK_OK;
  PyThreadState* thread = PyEval_SaveThread();
  const auto start = std::chrono::steady_clock::now();
  for (long long i = 0; i < count && status == DSAK_OK; ++i)
    status = dsak_launch(d.op, call.args, static_cast<size_t>(d.count), call.workspace, call.stream, &error);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  PyEval_RestoreThread(thread);
  if (status != DSAK_OK) return raise(error, status);
  return PyFloat_FromDouble(took.count() / static_cast<double>(count));
}

}  // namespace dsak::python
