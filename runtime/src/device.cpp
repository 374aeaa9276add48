#include "device.h"

#include <algorithm>

#include "error.h"

namespace dsak {

std::string device_text(DeviceKey key) { return cat(device_prefix(key.vendor), ':', key.id); }

namespace {

DeviceInfo describe(Driver& driver, DeviceKey key) {
  const int count = driver.device_count();
  if (key.id >= count)
    fail(DSAK_ERR_DEVICE, "found device ", device_text(key), ", wanted one of the ", count, " ", vendor_name(key.vendor),
         " devices that the driver shows; check the tensor's device and the list of visible devices");
  return driver.describe(key.id);
}

}  // namespace

Device::Device(Driver& driver, DeviceKey key) : driver_(driver), key_(key), info_(describe(driver, key)) {}

Device::~Device() {
  if (!retained_) return;
  {
    const Entered entered(*this);
    for (auto& [sha256, module] : modules_)
      if (module.handle != nullptr) driver_.unload(module.handle);
  }
  driver_.release_context(key_.id);
}

void* Device::function(const Pack& pack, const ObjectDecl& object, const std::string& symbol, uint32_t shared,
                       uint32_t cluster) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!retained_) {
    context_ = driver_.retain_context(key_.id);
    retained_ = true;
  }
  const Entered entered(*this);
  if (entered.code() != 0) driver_.enter_failed(entered.code());
  Module& m = module(pack, object);
  const auto found = m.functions.find(symbol);
  if (found != m.functions.end() && found->second.shared >= shared && found->second.cluster >= cluster)
    return found->second.handle;
  // Several launches may share a function: its limits only ever grow.
  if (found != m.functions.end()) {
    shared = std::max(shared, found->second.shared);
    cluster = std::max(cluster, found->second.cluster);
  }
  const Function f{driver_.function(m.handle, symbol, shared, cluster), shared, cluster};
  m.functions[symbol] = f;
  return f.handle;
}

Device::Module& Device::module(const Pack& pack, const ObjectDecl& object) {
  const auto found = modules_.find(object.sha256);
  if (found != modules_.end()) return found->second;
  Module m;
  m.image = pack.read(object);
  m.handle = driver_.load(m.image);
  if (!driver_.keeps_image()) Bytes().swap(m.image);
  return modules_.emplace(object.sha256, std::move(m)).first->second;
}

}  // namespace dsak
