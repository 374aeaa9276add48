// What the runtime asks of a vendor's driver library, which is opened with dlopen on first use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "manifest.h"
#include "pack.h"

namespace dsak {

struct DeviceInfo {
  std::string arch;  // "sm_90", "gfx950"
  int64_t sm_count = 0;
};

struct LaunchConfig {
  void* function;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared;
  bool dependent;  // blocks may come while the kernel before still runs
  void* stream;
  void** args;
};

// A tensor for a tensor map: rows of `bytes` bytes, of which only whole lines of 128 count, in one or two dimensions. A box is
// `lines` lines of each of `rows` neighbouring rows.
struct BoxesView {
  uint64_t address, bytes;
  uint32_t rank;                  // of what follows
  uint64_t sizes[2], strides[2];  // the inner dimension first; strides in bytes
  uint32_t lines, rows;
};
constexpr uint64_t kLineBytes = 128;
constexpr size_t kTensorMapBytes = 128, kTensorMapAlignment = 64;

// Codes are the driver's own; 0 is success everywhere. Functions that return one do not throw and are on the launch path.
class Driver {
 public:
  virtual ~Driver() = default;

  virtual int version() = 0;
  virtual int device_count() = 0;
  virtual DeviceInfo describe(int device) = 0;

  // The device's primary context, kept until release_context. Null where the driver has none.
  virtual void* retain_context(int device) = 0;
  virtual void release_context(int device) noexcept = 0;

  // Both with the device current. `image` must stay alive until unload when keeps_image() says so.
  virtual void* load(const Bytes& image) = 0;
  virtual void unload(void* module) noexcept = 0;
  virtual bool keeps_image() const = 0;
  // The function, resident on the device, ready for `shared` bytes of dynamic shared memory and clusters of `cluster` blocks.
  virtual void* function(void* module, const std::string& symbol, uint32_t shared, uint32_t cluster) = 0;

  struct Current {
    void* context = nullptr;  // CUDA
    int device = -1;          // HIP
    bool changed = false;
  };
  // Make the device current on this thread, remembering what was.
  virtual int enter(int device, void* context, Current* previous) noexcept = 0;
  virtual void leave(const Current& previous) noexcept = 0;
  virtual int launch(const LaunchConfig& config) noexcept = 0;
  // Writes the tensor map that a `map` argument is: [outer][rows][lines][128 bytes], with the 128-byte swizzle.
  virtual int encode(const BoxesView& boxes, void* map) noexcept = 0;

  // Throw what went wrong when enter, launch or encode returned `code`; `symbol` is the kernel, if there is one.
  [[noreturn]] virtual void enter_failed(int code) = 0;
  [[noreturn]] virtual void launch_failed(int code, const LaunchConfig& config, const std::string& symbol) = 0;
  // `who` asked for the map.
  [[noreturn]] virtual void encode_failed(int code, const std::string& who, const BoxesView& boxes) = 0;
};

// Throws Error (DSAK_ERR_DRIVER) when the library is not there or does not start.
std::unique_ptr<Driver> open_cuda(const std::string& library);
std::unique_ptr<Driver> open_hip(const std::string& library);

const char* vendor_name(Vendor vendor);    // "NVIDIA"
const char* device_prefix(Vendor vendor);  // "cuda", "rocm"

}  // namespace dsak
