// The objects behind the handles: a runtime owns packs, ops, drivers and devices.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "dsa_kernels.h"
#include "pack.h"
#include "plan.h"

namespace dsak {

constexpr int kMaxDevices = 64;

struct PackPlan {
  const Pack* pack;
  std::unique_ptr<Plan> plan;
};

// Whether the pack's target is the device's architecture: vendor and name, never a number.
inline bool serves(const PackPlan& p, const Device& device) {
  return p.plan->target->vendor == device.key().vendor && p.plan->target->device_arch == device.arch();
}

// An op on a device: what a launch needs, found once. Functions are null until loaded.
struct Bound {
  const uint64_t id;  // unique in the process, never used again
  const PackPlan& served;
  Device& device;
  std::vector<std::atomic<void*>> functions;

  Bound(const PackPlan& s, Device& d);
  // Load the function of `launch` unless that has happened.
  void* load(const LaunchPlan& launch);
};

}  // namespace dsak

struct dsak_op {
  dsak_runtime& runtime;
  const std::string name;
  std::vector<dsak::PackPlan> plans;  // one per pack that has the op

  dsak_op(dsak_runtime& r, std::string n) : runtime(r), name(std::move(n)) {}

  // The op on a device; null before its first use there.
  dsak::Bound* bound(dsak::DeviceKey key) const noexcept {
    if (key.id >= dsak::kMaxDevices) return nullptr;
    return table_[static_cast<int>(key.vendor)][key.id].load(std::memory_order_acquire);
  }
  // The same, made if need be: opens the driver and asks for the device's architecture. Throws Error.
  dsak::Bound& bind(dsak::DeviceKey key);
  // The plan for shapes and dtypes alone: without a driver where only one pack of the vendor has the op.
  const dsak::Plan& plan_for(dsak::DeviceKey key);
  const dsak::PackPlan& plan_named(const std::string& target) const;
  const dsak::Plan& any_plan() const { return *plans[0].plan; }

 private:
  const dsak::PackPlan& serve(const dsak::Device& device) const;
  std::string targets() const;

  std::mutex mutex_;
  std::vector<std::unique_ptr<dsak::Bound>> owned_;
  std::atomic<dsak::Bound*> table_[2][dsak::kMaxDevices] = {};
};

struct dsak_runtime {
  explicit dsak_runtime(const dsak_options& options);

  dsak_op& find(const std::string& name);
  const std::vector<std::unique_ptr<dsak_op>>& ops() const { return ops_; }
  const std::vector<std::unique_ptr<dsak::Pack>>& packs() const { return packs_; }

  // The device, its driver opened on first use. Throws Error.
  dsak::Device& device(dsak::DeviceKey key);
  // Throws Error when the driver is too old for the pack.
  void check_driver(const dsak::Pack& pack, const dsak::Device& device) const;

 private:
  void add(const dsak::Pack& pack);
  dsak::Driver& driver(dsak::Vendor vendor);

  std::string libraries_[2];
  std::vector<std::unique_ptr<dsak::Pack>> packs_;
  std::mutex mutex_;
  std::unique_ptr<dsak::Driver> drivers_[2];
  std::unique_ptr<dsak::Device> devices_[2][dsak::kMaxDevices];  // destroyed before the drivers
  std::vector<std::unique_ptr<dsak_op>> ops_;
};
