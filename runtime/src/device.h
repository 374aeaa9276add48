// A device that has been used: its identity, its context and the objects loaded on it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "driver.h"
#include "pack.h"

namespace dsak {

struct DeviceKey {
  Vendor vendor;
  int id;
};

std::string device_text(DeviceKey key);  // "cuda:0"

class Device {
 public:
  // Asks the driver who the device is; neither a context nor an object is created yet.
  Device(Driver& driver, DeviceKey key);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Driver& driver() const { return driver_; }
  DeviceKey key() const { return key_; }
  const std::string& arch() const { return info_.arch; }
  int64_t sm_count() const { return info_.sm_count; }
  void* context() const { return context_; }

  // The function, its object verified and loaded by the first caller; later callers, of any thread, get the same one.
  // A failure leaves nothing behind and is met again by the next caller.
  void* function(const Pack& pack, const ObjectDecl& object, const std::string& symbol, uint32_t shared, uint32_t cluster);

 private:
  struct Function {
    void* handle;
    uint32_t shared, cluster;
  };
  struct Module {
    void* handle = nullptr;
    Bytes image;
    std::map<std::string, Function> functions;
  };
  Module& module(const Pack& pack, const ObjectDecl& object);

  Driver& driver_;
  const DeviceKey key_;
  const DeviceInfo info_;
  void* context_ = nullptr;
  bool retained_ = false;
  std::mutex mutex_;
  std::map<std::string, Module> modules_;  // by sha256
};

// The device is current while this lives.
class Entered {
 public:
  explicit Entered(const Device& device) : driver_(device.driver()) {
    code_ = driver_.enter(device.key().id, device.context(), &previous_);
  }
  ~Entered() { driver_.leave(previous_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  int code() const { return code_; }

 private:
  Driver& driver_;
  Driver::Current previous_;
  int code_;
};

}  // namespace dsak
