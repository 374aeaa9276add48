#include "driver.h"
#include "error.h"
#include "library.h"

// The few declarations of the CUDA driver API that we use; the library itself is opened at run time.
namespace dsak {
namespace {

using Result = int;
constexpr int kNumSms = 16, kMajor = 75, kMinor = 76;                      // CUdevice_attribute
constexpr int kNumRegs = 4, kMaxDynamicShared = 8, kNonPortable = 14;      // CUfunction_attribute
constexpr int kCaptureRelaxed = 2;                                         // CUstreamCaptureMode
constexpr uint32_t kClusterDimension = 4, kProgrammaticSerialization = 6;  // CUlaunchAttributeID
constexpr int kProgrammaticGraphs = 12030;                                 // the driver that can capture a dependent launch
constexpr uint32_t kPortableCluster = 8;
constexpr Result kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
// Of cuTensorMapEncodeTiled.
constexpr int kBytes = 0, kNoInterleave = 0, kSwizzle128 = 3, kPromotionL2At128 = 2, kZeros = 0;

struct LaunchAttribute {
  uint32_t id, pad;
  uint32_t value[16];
};
struct ExtendedConfig {
  uint32_t grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  uint32_t num_attributes;
};

struct Api {
  Result (*cuInit)(unsigned);
  Result (*cuDriverGetVersion)(int*);
  Result (*cuDeviceGetCount)(int*);
  Result (*cuDeviceGet)(int*, int);
  Result (*cuDeviceGetAttribute)(int*, int, int);
  Result (*cuDevicePrimaryCtxRetain)(void**, int);
  Result (*cuDevicePrimaryCtxRelease)(int);
  Result (*cuCtxGetCurrent)(void**);
  Result (*cuCtxSetCurrent)(void*);
  Result (*cuLibraryLoadData)(void**, const void*, int*, void**, unsigned, int*, void**, unsigned);
  Result (*cuLibraryUnload)(void*);
  Result (*cuLibraryGetKernel)(void**, void*, const char*);
  Result (*cuKernelGetFunction)(void**, void*);
  Result (*cuFuncGetAttribute)(int*, int, void*);
  Result (*cuFuncSetAttribute)(void*, int, int);
  Result (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  Result (*cuLaunchKernelEx)(const ExtendedConfig*, void*, void**, void**);
  Result (*cuTensorMapEncodeTiled)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                                   const uint32_t*, int, int, int, int);
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuGetErrorString)(Result, const char**);
  Result (*cuFuncLoad)(void*);                        // since CUDA 12.4, may be null
  Result (*cuThreadExchangeStreamCaptureMode)(int*);  // may be null
};

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(const std::string& library) {
    std::string reason;
    if (!library_.open(library, &reason))
      fail(DSAK_ERR_DRIVER, "found no CUDA driver library ", library, " (", reason,
           "); install the NVIDIA driver, or set DSA_KERNELS_CUDA_LIBRARY");
    find("cuDriverGetVersion", &api_.cuDriverGetVersion);
    find("cuInit", &api_.cuInit);
    find("cuGetErrorName", &api_.cuGetErrorName);
    find("cuGetErrorString", &api_.cuGetErrorString);
    check(api_.cuInit(0), "cuInit");
    find("cuDeviceGetCount", &api_.cuDeviceGetCount);
    find("cuDeviceGet", &api_.cuDeviceGet);
    find("cuDeviceGetAttribute", &api_.cuDeviceGetAttribute);
    find("cuDevicePrimaryCtxRetain", &api_.cuDevicePrimaryCtxRetain);
    find("cuDevicePrimaryCtxRelease_v2", &api_.cuDevicePrimaryCtxRelease);
    find("cuCtxGetCurrent", &api_.cuCtxGetCurrent);
    find("cuCtxSetCurrent", &api_.cuCtxSetCurrent);
    find("cuFuncGetAttribute", &api_.cuFuncGetAttribute);
    find("cuFuncSetAttribute", &api_.cuFuncSetAttribute);
    find("cuLaunchKernel", &api_.cuLaunchKernel);
    // Drivers before 12.0 lack these; min_driver says so in better words than a missing symbol.
    library_.find("cuLibraryLoadData", &api_.cuLibraryLoadData);
    library_.find("cuLibraryUnload", &api_.cuLibraryUnload);
    library_.find("cuLibraryGetKernel", &api_.cuLibraryGetKernel);
    library_.find("cuKernelGetFunction", &api_.cuKernelGetFunction);
    library_.find("cuLaunchKernelEx", &api_.cuLaunchKernelEx);
    library_.find("cuTensorMapEncodeTiled", &api_.cuTensorMapEncodeTiled);
    library_.find("cuFuncLoad", &api_.cuFuncLoad);
    library_.find("cuThreadExchangeStreamCaptureMode", &api_.cuThreadExchangeStreamCaptureMode);
    depends_ = api_.cuLaunchKernelEx != nullptr && version() >= kProgrammaticGraphs;
  }

  int version() override {
    int v = 0;
    check(api_.cuDriverGetVersion(&v), "cuDriverGetVersion");
    return v;
  }

  int device_count() override {
    int n = 0;
    check(api_.cuDeviceGetCount(&n), "cuDeviceGetCount");
    return n;
  }

  DeviceInfo describe(int device) override {
    DeviceInfo info;
    info.arch = cat("sm_", attribute(kMajor, device), attribute(kMinor, device));
    info.sm_count = attribute(kNumSms, device);
    return info;
  }

  void* retain_context(int device) override {
    void* context = nullptr;
    check(api_.cuDevicePrimaryCtxRetain(&context, handle(device)), "cuDevicePrimaryCtxRetain");
    return context;
  }
  void release_context(int device) noexcept override {
    int h = 0;
    if (api_.cuDeviceGet(&h, device) == 0) api_.cuDevicePrimaryCtxRelease(h);
  }

  void* load(const Bytes& image) override {
    if (api_.cuLibraryLoadData == nullptr || api_.cuLibraryUnload == nullptr || api_.cuLibraryGetKernel == nullptr ||
        api_.cuKernelGetFunction == nullptr)
      fail(DSAK_ERR_DRIVER_OLD, "found a CUDA driver without cuLibraryLoadData, wanted 12.0 or newer; update the driver");
    const Relaxed relaxed(api_);
    void* module = nullptr;
    check(api_.cuLibraryLoadData(&module, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    return module;
  }
  void unload(void* module) noexcept override { api_.cuLibraryUnload(module); }
  bool keeps_image() const override { return false; }

  void* function(void* module, const std::string& symbol, uint32_t shared, uint32_t cluster) override {
    const Relaxed relaxed(api_);
    void *kernel = nullptr, *f = nullptr;
    check(api_.cuLibraryGetKernel(&kernel, module, symbol.c_str()), "cuLibraryGetKernel", symbol);
    check(api_.cuKernelGetFunction(&f, kernel), "cuKernelGetFunction", symbol);
    if (cluster > 1 && api_.cuLaunchKernelEx == nullptr)
      fail(DSAK_ERR_DRIVER_OLD, "found a CUDA driver without cuLaunchKernelEx, wanted 12.0 or newer; update the driver");
    // What a launch may have without it is 48 KiB less the function's static shared memory.
    if (shared > 0) set(f, kMaxDynamicShared, static_cast<int>(shared), symbol);
    if (cluster > kPortableCluster) set(f, kNonPortable, 1, symbol);
    make_resident(f, symbol);
    return f;
  }

  int enter(int, void* context, Current* previous) noexcept override {
    const Result code = api_.cuCtxGetCurrent(&previous->context);
    if (code != 0 || previous->context == context) return code;
    previous->changed = true;
    return api_.cuCtxSetCurrent(context);
  }
  void leave(const Current& previous) noexcept override {
    if (previous.changed) api_.cuCtxSetCurrent(previous.context);
  }

  int launch(const LaunchConfig& c) noexcept override {
    if (!is_extended(c))
      return api_.cuLaunchKernel(c.function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared,
                                 c.stream, c.args, nullptr);
    LaunchAttribute attributes[2];
    uint32_t count = 0;
    if (is_cluster(c)) attributes[count++] = {kClusterDimension, 0, {c.cluster[0], c.cluster[1], c.cluster[2]}};
    if (depends_ && c.dependent) attributes[count++] = {kProgrammaticSerialization, 0, {1}};
    const ExtendedConfig config{
        {c.grid[0], c.grid[1], c.grid[2]}, {c.block[0], c.block[1], c.block[2]}, c.shared, c.stream, attributes, count};
    return api_.cuLaunchKernelEx(&config, c.function, c.args, nullptr);
  }

  int encode(const BoxesView& boxes, void* map) noexcept override {
    if (api_.cuTensorMapEncodeTiled == nullptr) return kNotSupported;
    constexpr uint32_t kMost = 4, every[kMost] = {1, 1, 1, 1};
    const uint32_t box[kMost] = {kLineBytes, boxes.lines, boxes.rows, 1};
    const uint64_t sizes[kMost] = {kLineBytes, boxes.bytes / kLineBytes, boxes.sizes[0], boxes.sizes[1]};
    const uint64_t strides[kMost - 1] = {kLineBytes, boxes.strides[0], boxes.strides[1]};
    return api_.cuTensorMapEncodeTiled(map, kBytes, 2 + boxes.rank, reinterpret_cast<void*>(boxes.address), sizes, strides, box,
                                       every, kNoInterleave, kSwizzle128, kPromotionL2At128, kZeros);
  }

  [[noreturn]] void enter_failed(int code) override { refuse(code, "cuCtxSetCurrent", {}); }
  [[noreturn]] void launch_failed(int code, const LaunchConfig& c, const std::string& symbol) override {
    refuse(code, is_extended(c) ? "cuLaunchKernelEx" : "cuLaunchKernel", symbol);
  }
  [[noreturn]] void encode_failed(int code, const std::string& who, const BoxesView& boxes) override {
    std::string rows = cat(boxes.sizes[0], " rows of ", boxes.bytes, " bytes, ", boxes.strides[0], " apart");
    if (boxes.rank > 1) rows += cat(", ", boxes.sizes[1], " times, ", boxes.strides[1], " apart");
    refuse(code, cat(who, "cuTensorMapEncodeTiled for ", rows).c_str(), {});
  }

 private:
  // Loading is legal while this thread captures a stream in the strict mode only when relaxed.
  class Relaxed {
   public:
    explicit Relaxed(const Api& api) : api_(api) {
      if (api_.cuThreadExchangeStreamCaptureMode != nullptr) api_.cuThreadExchangeStreamCaptureMode(&mode_);
    }
    ~Relaxed() {
      if (api_.cuThreadExchangeStreamCaptureMode != nullptr) api_.cuThreadExchangeStreamCaptureMode(&mode_);
    }
    Relaxed(const Relaxed&) = delete;
    Relaxed& operator=(const Relaxed&) = delete;

   private:
    const Api& api_;
    int mode_ = kCaptureRelaxed;
  };

  template <class Function>
  void find(const char* symbol, Function** out) {
    if (!library_.find(symbol, out))
      fail(DSAK_ERR_DRIVER, library_.name(), ": found no function ", symbol, "; update the NVIDIA driver");
  }

  static bool is_cluster(const LaunchConfig& c) { return c.cluster[0] * c.cluster[1] * c.cluster[2] != 1; }
  bool is_extended(const LaunchConfig& c) const { return is_cluster(c) || (depends_ && c.dependent); }

  void check(Result code, const char* call, const std::string& symbol = {}) {
    if (code != 0) refuse(code, call, symbol);
  }
  [[noreturn]] void refuse(Result code, const char* call, const std::string& symbol) {
    const char *name = nullptr, *text = nullptr;
    if (api_.cuGetErrorName(code, &name) != 0 || name == nullptr) name = "unknown code";
    if (api_.cuGetErrorString(code, &text) != 0 || text == nullptr) text = "no description";
    fail(DSAK_ERR_DRIVER, call, symbol.empty() ? "" : " of ", symbol, ": found ", name, " (", code, ": ", text, ')');
  }

  int handle(int device) {
    int h = 0;
    check(api_.cuDeviceGet(&h, device), "cuDeviceGet");
    return h;
  }
  int attribute(int which, int device) {
    int v = 0;
    check(api_.cuDeviceGetAttribute(&v, which, handle(device)), "cuDeviceGetAttribute");
    return v;
  }
  void set(void* f, int which, int value, const std::string& symbol) {
    check(api_.cuFuncSetAttribute(f, which, value), "cuFuncSetAttribute", symbol);
  }

  // Drivers load functions lazily, at worst during a stream capture, where that is not allowed.
  void make_resident(void* f, const std::string& symbol) {
    if (api_.cuFuncLoad != nullptr) return check(api_.cuFuncLoad(f), "cuFuncLoad", symbol);
    int registers = 0;
    check(api_.cuFuncGetAttribute(&registers, kNumRegs, f), "cuFuncGetAttribute", symbol);
  }

  Library library_;
  Api api_{};
  bool depends_ = false;  // launches kernels that wait by themselves early
};

}  // namespace

std::unique_ptr<Driver> open_cuda(const std::string& library) { return std::make_unique<CudaDriver>(library); }

const char* vendor_name(Vendor vendor) { return vendor == Vendor::kNvidia ? "NVIDIA" : "AMD"; }
const char* device_prefix(Vendor vendor) { return vendor == Vendor::kNvidia ? "cuda" : "rocm"; }

}  // namespace dsak
