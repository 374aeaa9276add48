// dsa_kernels._core: the control plane through pybind11, and the two C types of the launch path (Op, View).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench.h"
#include "core.h"
#include "dsa_kernels.h"
#include "errors.h"
#include "op.h"
#include "view.h"

namespace py = pybind11;

namespace dsak::python {
namespace {

void check(dsak_status status, const dsak_error& error) {
  if (status == DSAK_OK) return;
  raise(error, status);
  throw py::error_already_set();
}

py::object own(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

const char* c_str(const std::optional<std::string>& text) { return text ? text->c_str() : nullptr; }

class Runtime {
 public:
  Runtime(const std::vector<std::string>& packs, const std::optional<std::string>& cuda, const std::optional<std::string>& hip)
      : handle_(std::make_shared<Handle>()) {
    std::vector<const char*> paths;
    for (const std::string& p : packs) paths.push_back(p.c_str());
    const dsak_options options{sizeof(dsak_options), paths.data(), paths.size(), c_str(cuda), c_str(hip)};
    ErrorBuffer error;
    check(dsak_open(&options, &handle_->runtime, &error), error);
  }

  py::object find(const std::string& name) {
    dsak_op* op = nullptr;
    ErrorBuffer error;
    check(dsak_find(runtime(), name.c_str(), &op, &error), error);
    return own(make_op(handle_, op, name.c_str()));
  }

  std::string info() {
    char* json = dsak_info(runtime());
    if (json == nullptr) throw std::bad_alloc();
    std::string text = json;
    dsak_free(json);
    return text;
  }

  std::vector<std::string> ops() const { return op_names(*runtime()); }
  std::vector<std::string> vendors() const { return python::vendors(*runtime()); }

  void preload(const py::object& op, int device_type, int device) {
    dsak_op* handle = op.is_none() ? nullptr : op_handle(op.ptr());
    if (handle == nullptr && PyErr_Occurred()) throw py::error_already_set();
    dsak_runtime* open = runtime();
    const InUse in_use(*handle_);
    ErrorBuffer error;
    dsak_status status;
    {
      py::gil_scoped_release release;
      status = dsak_preload(open, handle, device_type, device, &error);
    }
    check(status, error);
  }

  bool closed() const { return handle_->runtime == nullptr; }

  void close() {
    if (handle_->in_use > 0) {
      raise(DSAK_ERR_INTERNAL, "found calls in flight; wanted none; join the threads that launch, then close");
      throw py::error_already_set();
    }
    dsak_runtime* open = handle_->runtime;
    handle_->runtime = nullptr;
    dsak_close(open);
  }

 private:
  dsak_runtime* runtime() const {
    if (!closed()) return handle_->runtime;
    raise(DSAK_ERR_INTERNAL, "found a closed runtime; wanted an open one; open the packs again");
    throw py::error_already_set();
  }

  std::shared_ptr<Handle> handle_;
};

void verify(const std::string& pack) {
  ErrorBuffer error;
  dsak_status status;
  {
    py::gil_scoped_release release;
    status = dsak_verify(pack.c_str(), &error);
  }
  check(status, error);
}

double raw_launches(uintptr_t function, uintptr_t kernel, std::array<unsigned, 3> grid, std::array<unsigned, 3> block,
                    unsigned shared, uintptr_t stream, uintptr_t params, long long count) {
  return time_raw({function, kernel, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, stream, params},
                  count);
}

}  // namespace
}  // namespace dsak::python

PYBIND11_MODULE(_core, m) {
  using namespace dsak::python;
  if (init_errors() != 0 || init_view(m.ptr()) != 0 || init_op(m.ptr()) != 0) throw py::error_already_set();
  m.attr("__version__") = dsak_version();
  m.attr("abi_version") = dsak_abi_version();

  py::class_<Runtime>(m, "Runtime", "Opened packs: finds ops, loads their objects on first use. Never closed implicitly.")
      .def(py::init<const std::vector<std::string>&, const std::optional<std::string>&, const std::optional<std::string>&>(),
           py::arg("packs"), py::arg("cuda_library") = py::none(), py::arg("hip_library") = py::none())
      .def("find", &Runtime::find, py::arg("name"), "The op of that name.")
      .def("info", &Runtime::info, "JSON: packs, ops, devices.")
      .def("ops", &Runtime::ops, "Names of the ops.")
      .def("vendors", &Runtime::vendors, "The vendor of each pack.")
      .def("preload", &Runtime::preload, py::arg("op"), py::arg("device_type"), py::arg("device"),
           "Load one op's objects, or all.")
      .def("close", &Runtime::close, "Unload everything; work in flight must have finished.")
      .def_property_readonly("closed", &Runtime::closed);

  m.def("verify", &verify, py::arg("pack"), "Check a pack directory offline; raises the typed verdict.");
  m.def(
      "explain",
      [](const py::object& op, const std::optional<std::string>& target, const py::tuple& args, const py::dict& kwargs) {
        return own(explain_call(op.ptr(), c_str(target), args.ptr(), kwargs.ptr()));
      },
      py::arg("op"), py::arg("target"), py::arg("args"), py::arg("kwargs"), "Every candidate for a call, with the reasons.");
  m.def(
      "time_launch",
      [](const py::object& op, long long count, const py::args& args, const py::kwargs& kwargs) {
        return own(time_call(op.ptr(), count, args.ptr(), kwargs.ptr()));
      },
      "Nanoseconds per dsak_launch of one bound call, over `count` launches.");
  m.def("time_raw_launch", &raw_launches, py::arg("function"), py::arg("kernel"), py::arg("grid"), py::arg("block"),
        py::arg("shared"), py::arg("stream"), py::arg("params"), py::arg("count"),
        "Nanoseconds per raw driver launch, over `count` launches.");
}
