#include <algorithm>

#include "driver.h"
#include "error.h"
#include "library.h"

// The few declarations of the HIP runtime API that we use; the library itself is opened at run time.
namespace dsak {
namespace {

using Result = int;
constexpr Result kNotSupported = 801;                         // hipErrorNotSupported
constexpr int kNumCus = 63;                                   // hipDeviceAttributeMultiprocessorCount
constexpr size_t kPropertiesRoom = 8192, kArchOffset = 1160;  // hipDeviceProp_tR0600: gcnArchName

struct Api {
  Result (*hipInit)(unsigned);
  Result (*hipDriverGetVersion)(int*);
  Result (*hipGetDeviceCount)(int*);
  Result (*hipGetDeviceProperties)(void*, int);
  Result (*hipDeviceGetAttribute)(int*, int, int);
  Result (*hipGetDevice)(int*);
  Result (*hipSetDevice)(int);
  Result (*hipModuleLoadData)(void**, const void*);
  Result (*hipModuleUnload)(void*);
  Result (*hipModuleGetFunction)(void**, void*, const char*);
  Result (*hipModuleLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                                  void**);
  const char* (*hipGetErrorName)(Result);
  const char* (*hipGetErrorString)(Result);
};

class HipDriver final : public Driver {
 public:
  explicit HipDriver(const std::string& library) {
    open(library);
    find("hipGetErrorName", &api_.hipGetErrorName);
    find("hipGetErrorString", &api_.hipGetErrorString);
    find("hipInit", &api_.hipInit);
    check(api_.hipInit(0), "hipInit");
    find("hipDriverGetVersion", &api_.hipDriverGetVersion);
    find("hipGetDeviceCount", &api_.hipGetDeviceCount);
    find("hipGetDevicePropertiesR0600", &api_.hipGetDeviceProperties);
    find("hipDeviceGetAttribute", &api_.hipDeviceGetAttribute);
    find("hipGetDevice", &api_.hipGetDevice);
    find("hipSetDevice", &api_.hipSetDevice);
    find("hipModuleLoadData", &api_.hipModuleLoadData);
    find("hipModuleUnload", &api_.hipModuleUnload);
    find("hipModuleGetFunction", &api_.hipModuleGetFunction);
    find("hipModuleLaunchKernel", &api_.hipModuleLaunchKernel);
  }

  int version() override {
    int v = 0;
    check(api_.hipDriverGetVersion(&v), "hipDriverGetVersion");
    return v;
  }

  int device_count() override {
    int n = 0;
    check(api_.hipGetDeviceCount(&n), "hipGetDeviceCount");
    return n;
  }

  DeviceInfo describe(int device) override {
    Bytes properties(kPropertiesRoom, 0);
    check(api_.hipGetDeviceProperties(properties.data(), device), "hipGetDeviceProperties");
    DeviceInfo info;
    info.arch = reinterpret_cast<const char*>(properties.data()) + kArchOffset;
    if (info.arch.compare(0, 3, "gfx") != 0)
      fail(DSAK_ERR_DRIVER, library_.name(), ": found no gcnArchName where HIP 6 and 7 keep it; install one of these");
    info.arch.resize(std::min(info.arch.size(), info.arch.find(':')));  // "gfx950:sramecc+:xnack-"
    int cus = 0;
    check(api_.hipDeviceGetAttribute(&cus, kNumCus, device), "hipDeviceGetAttribute");
    info.sm_count = cus;
    return info;
  }

  void* retain_context(int) override { return nullptr; }
  void release_context(int) noexcept override {}

  void* load(const Bytes& image) override {
    void* module = nullptr;
    check(api_.hipModuleLoadData(&module, image.data()), "hipModuleLoadData");
    return module;
  }
  void unload(void* module) noexcept override { api_.hipModuleUnload(module); }
  bool keeps_image() const override { return true; }

  // Dynamic shared memory needs no permission here, whatever its size.
  void* function(void* module, const std::string& symbol, uint32_t, uint32_t cluster) override {
    if (cluster > 1) fail(DSAK_ERR_PACK_SCHEMA, symbol, ": found a cluster launch for an AMD device, wanted none");
    void* f = nullptr;
    check(api_.hipModuleGetFunction(&f, module, symbol.c_str()), "hipModuleGetFunction", symbol);
    return f;
  }

  int enter(int device, void*, Current* previous) noexcept override {
    const Result code = api_.hipGetDevice(&previous->device);
    if (code != 0 || previous->device == device) return code;
    previous->changed = true;
    return api_.hipSetDevice(device);
  }
  void leave(const Current& previous) noexcept override {
    if (previous.changed) api_.hipSetDevice(previous.device);
  }

  int launch(const LaunchConfig& c) noexcept override {
    return api_.hipModuleLaunchKernel(c.function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared,
                                      c.stream, c.args, nullptr);
  }

  // Plans refuse `map` arguments of AMD's kernels.
  int encode(const BoxesView&, void*) noexcept override { return kNotSupported; }

  [[noreturn]] void enter_failed(int code) override { refuse(code, "hipSetDevice", {}); }
  [[noreturn]] void launch_failed(int code, const LaunchConfig&, const std::string& symbol) override {
    refuse(code, "hipModuleLaunchKernel", symbol);
  }
  [[noreturn]] void encode_failed(int code, const std::string& who, const BoxesView&) override {
    refuse(code, (who + "a tensor map").c_str(), {});
  }

 private:
  // Another part of the process, torch for one, may carry its own copy; two copies do not know each other's memory.
  void open(const std::string& library) {
    const bool by_name = library.find('/') == std::string::npos;
    if (by_name)
      for (const char* version : {"", ".7", ".6"})
        if (library_.open_loaded(library + version)) return;
    std::string reason, first;
    for (const char* version : {"", ".7", ".6"}) {
      if (library_.open(library + version, &reason)) return;
      if (first.empty()) first = reason;
      if (!by_name) break;
    }
    fail(DSAK_ERR_DRIVER, "found no HIP library ", library, " (", first,
         "); install ROCm 6 or 7, or set DSA_KERNELS_HIP_LIBRARY");
  }

  template <class Function>
  void find(const char* symbol, Function** out) {
    if (!library_.find(symbol, out))
      fail(DSAK_ERR_DRIVER, library_.name(), ": found no function ", symbol, ", wanted HIP 6 or 7; update ROCm");
  }

  void check(Result code, const char* call, const std::string& symbol = {}) {
    if (code != 0) refuse(code, call, symbol);
  }
  [[noreturn]] void refuse(Result code, const char* call, const std::string& symbol) {
    const char *name = api_.hipGetErrorName(code), *text = api_.hipGetErrorString(code);
    fail(DSAK_ERR_DRIVER, call, symbol.empty() ? "" : " of ", symbol, ": found ", name != nullptr ? name : "unknown code", " (",
         code, ": ", text != nullptr ? text : "no description", ')');
  }

  Library library_;
  Api api_{};
};

}  // namespace

std::unique_ptr<Driver> open_hip(const std::string& library) { return std::make_unique<HipDriver>(library); }

}  // namespace dsak
