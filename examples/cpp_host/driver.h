// The few CUDA driver calls that the example needs, through dlopen: it builds and starts without a CUDA toolkit.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

class Driver {
 public:
  Driver() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library_) fail("dlopen libcuda.so.1", -1);
    call("cuInit", 0u);
    int device = 0;
    call("cuDeviceGet", &device, 0);
    void* context = nullptr;
    call("cuDevicePrimaryCtxRetain", &context, device);
    call("cuCtxSetCurrent", context);
  }

  template <class T>
  T* upload(const std::vector<T>& host) {
    T* device = allocate<T>(host.size());
    call("cuMemcpyHtoD_v2", address(device), static_cast<const void*>(host.data()), host.size() * sizeof(T));
    return device;
  }

  // Device memory full of 0xff: NaN in every float format, so that an unwritten output shows.
  template <class T>
  T* allocate(size_t count) {
    unsigned long long device = 0;
    call("cuMemAlloc_v2", &device, count * sizeof(T));
    call("cuMemsetD8_v2", device, static_cast<unsigned char>(0xff), count * sizeof(T));
    return reinterpret_cast<T*>(device);
  }

  template <class T>
  std::vector<T> download(const T* device, size_t count) {
    std::vector<T> host(count);
    call("cuCtxSynchronize");
    call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), address(device), count * sizeof(T));
    return host;
  }

 private:
  static unsigned long long address(const void* p) { return reinterpret_cast<unsigned long long>(p); }

  template <class... A>
  void call(const char* name, A... args) {
    auto function = reinterpret_cast<int (*)(A...)>(dlsym(library_, name));
    const int status = function ? function(args...) : -1;
    if (status) fail(name, status);
  }

  [[noreturn]] static void fail(const char* what, int status) {
    std::fprintf(stderr, "%s failed with %d; this example needs an NVIDIA driver and an SM90 device\n", what, status);
    std::exit(1);
  }

  void* library_;
};
