#include <cstring>

#include "standin.h"

using namespace standin;

namespace {

constexpr int kInvalidDevice = 101, kInvalidContext = 201, kNotFound = 500;
thread_local int current = 0;
std::string number(long long v) { return std::to_string(v); }
bool exists(int device) { return device >= 0 && device < static_cast<int>(state().archs.size()); }

}  // namespace

STANDIN_API int hipInit(unsigned) { return enter("hipInit"); }
STANDIN_API int hipDriverGetVersion(int* v) {
  *v = state().version;
  return enter("hipDriverGetVersion");
}
STANDIN_API int hipGetDeviceCount(int* n) {
  *n = static_cast<int>(state().archs.size());
  return enter("hipGetDeviceCount");
}
STANDIN_API int hipGetDevicePropertiesR0600(void* properties, int device) {
  if (!exists(device)) return kInvalidDevice;
  constexpr size_t kSize = 1472, kArch = 1160;  // hipDeviceProp_tR0600: its size, and where gcnArchName stands
  std::memset(properties, 0, kSize);
  const std::string& arch = state().archs[static_cast<size_t>(device)];
  std::memcpy(static_cast<char*>(properties) + kArch, arch.c_str(), arch.size() + 1);
  return enter("hipGetDeviceProperties", number(device));
}
STANDIN_API int hipDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 63 ? state().sm_count : 0;
  return enter("hipDeviceGetAttribute", number(which) + " " + number(device));
}
STANDIN_API int hipGetDevice(int* device) {
  *device = current;
  return state().quiet ? 0 : enter("hipGetDevice");
}
STANDIN_API int hipSetDevice(int device) {
  if (!exists(device)) return kInvalidDevice;
  current = device;
  return enter("hipSetDevice", number(device));
}
STANDIN_API int hipModuleLoadData(void** module, const void* image) {
  const int code = enter("hipModuleLoadData", number(current));
  if (code == 0) *module = add_module(image, current);
  return code;
}
STANDIN_API int hipModuleUnload(void*) { return enter("hipModuleUnload"); }
STANDIN_API int hipModuleGetFunction(void** function, void* module, const char* symbol) {
  *function = find_function(static_cast<Module*>(module), symbol);
  const int code = enter("hipModuleGetFunction", symbol);
  return code != 0 ? code : *function == nullptr ? kNotFound : 0;
}
STANDIN_API int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                      unsigned shared, void* stream, void** args, void**) {
  if (state().quiet) return 0;
  const Function* function = static_cast<Function*>(f);
  if (function->device != current) return kInvalidContext;
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return enter("hipModuleLaunchKernel", launch_text(*function, grid, block, shared, stream, args));
}
STANDIN_API const char* hipGetErrorName(int) { return "hipErrorStandin"; }
STANDIN_API const char* hipGetErrorString(int) { return "an error of the stand-in driver"; }

STANDIN_API int standin_current() { return current; }
STANDIN_API void standin_set_current(int device) { current = device; }
