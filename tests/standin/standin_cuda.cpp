#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "standin.h"

using namespace standin;

namespace {

constexpr int kInvalidValue = 1, kInvalidDevice = 101, kInvalidContext = 201, kNotFound = 500;

int contexts[64];  // the address of an element is the primary context of a device
thread_local int* current = nullptr;

int device_of_current() { return current == nullptr ? -1 : static_cast<int>(current - contexts); }
std::string number(long long v) { return std::to_string(v); }

struct Attribute {
  unsigned id, pad;
  unsigned value[16];
};
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned num_attributes;
};

int check_launch(const Function* f) {
  if (f == nullptr) return kInvalidValue;
  return f->device == device_of_current() ? 0 : kInvalidContext;
}

}  // namespace

STANDIN_API int cuInit(unsigned) { return enter("cuInit"); }
STANDIN_API int cuDriverGetVersion(int* v) {
  *v = state().version;
  return enter("cuDriverGetVersion");
}
STANDIN_API int cuDeviceGetCount(int* n) {
  *n = static_cast<int>(state().archs.size());
  return enter("cuDeviceGetCount");
}
STANDIN_API int cuDeviceGet(int* handle, int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(state().archs.size())) return kInvalidDevice;
  *handle = ordinal;
  return enter("cuDeviceGet", number(ordinal));
}
STANDIN_API int cuDeviceGetAttribute(int* value, int which, int device) {
  int major = 0, minor = 0;
  std::sscanf(state().archs[static_cast<size_t>(device)].c_str(), "%d.%d", &major, &minor);
  *value = which == 75 ? major : which == 76 ? minor : which == 16 ? state().sm_count : 0;
  return enter("cuDeviceGetAttribute", number(which) + " " + number(device));
}
STANDIN_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = contexts + device;
  return enter("cuDevicePrimaryCtxRetain", number(device));
}
STANDIN_API int cuDevicePrimaryCtxRelease_v2(int device) { return enter("cuDevicePrimaryCtxRelease", number(device)); }
STANDIN_API int cuCtxGetCurrent(void** context) {
  *context = current;
  return state().quiet ? 0 : enter("cuCtxGetCurrent");
}
STANDIN_API int cuCtxSetCurrent(void* context) {
  current = static_cast<int*>(context);
  return state().quiet ? 0 : enter("cuCtxSetCurrent", number(device_of_current()));
}
STANDIN_API int cuLibraryLoadData(void** library, const void* image, int*, void**, unsigned, int*, void**, unsigned) {
  if (current == nullptr) return kInvalidContext;
  const int code = enter("cuLibraryLoadData", number(device_of_current()));
  if (code == 0) *library = add_module(image, device_of_current());
  return code;
}
STANDIN_API int cuLibraryUnload(void*) { return enter("cuLibraryUnload"); }
STANDIN_API int cuLibraryGetKernel(void** kernel, void* library, const char* symbol) {
  *kernel = find_function(static_cast<Module*>(library), symbol);
  const int code = enter("cuLibraryGetKernel", symbol);
  return code != 0 ? code : *kernel == nullptr ? kNotFound : 0;
}
STANDIN_API int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return enter("cuKernelGetFunction", static_cast<Function*>(kernel)->name);
}
STANDIN_API int cuFuncLoad(void* f) { return enter("cuFuncLoad", static_cast<Function*>(f)->name); }
STANDIN_API int cuFuncGetAttribute(int* value, int which, void*) {
  *value = 0;
  return enter("cuFuncGetAttribute", number(which));
}
STANDIN_API int cuFuncSetAttribute(void* f, int which, int value) {
  return enter("cuFuncSetAttribute", static_cast<Function*>(f)->name + " " + number(which) + " " + number(value));
}
STANDIN_API int cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int now = 0;
  std::swap(now, *mode);
  return 0;
}
STANDIN_API int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                               unsigned shared, void* stream, void** args, void**) {
  const Function* function = static_cast<Function*>(f);
  if (state().quiet) return 0;
  if (const int code = check_launch(function)) return code;
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return enter("cuLaunchKernel", launch_text(*function, grid, block, shared, stream, args));
}
STANDIN_API int cuLaunchKernelEx(const Config* c, void* f, void** args, void**) {
  const Function* function = static_cast<Function*>(f);
  if (const int code = check_launch(function)) return code;
  std::string details = launch_text(*function, c->grid, c->block, c->shared, c->stream, args);
  for (unsigned i = 0; i < c->num_attributes; ++i) {
    const Attribute& a = c->attributes[i];
    details += " attribute" + number(a.id) + "=" + number(a.value[0]) + "," + number(a.value[1]) + "," + number(a.value[2]);
  }
  return enter("cuLaunchKernelEx", details);
}
STANDIN_API int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const unsigned long long* sizes,
                                       const unsigned long long* strides, const unsigned* box, const unsigned* every,
                                       int interleave, int swizzle, int, int fill) {
  if (current == nullptr) return kInvalidContext;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || rank > 5) return kInvalidValue;
  std::string details = number(type) + " " + number(reinterpret_cast<long long>(address)) + " " + number(interleave) + " " +
                        number(swizzle) + " " + number(fill);
  for (unsigned i = 0; i < rank; ++i)
    details += " " + number(static_cast<long long>(sizes[i])) + "," + number(box[i]) + "," + number(every[i]) + "," +
               (i + 1 < rank ? number(static_cast<long long>(strides[i])) : "");
  std::memset(map, 0, 128);
  std::memcpy(map, &address, sizeof address);  // a launch's record shows a word of every argument
  return enter("cuTensorMapEncodeTiled", details);
}
STANDIN_API int cuGetErrorName(int code, const char** name) {
  *name = code == kNotFound ? "CUDA_ERROR_NOT_FOUND" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STANDIN";
  return 0;
}
STANDIN_API int cuGetErrorString(int, const char** text) {
  *text = "an error of the stand-in driver";
  return 0;
}

// The device whose context is current on this thread, -1 for none; not part of the driver API.
STANDIN_API int standin_current() { return device_of_current(); }
STANDIN_API void standin_set_current(int device) { current = device < 0 ? nullptr : contexts + device; }
