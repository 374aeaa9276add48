// Devices seen without starting a driver.
#pragma once

#include <string>
#include <vector>

#include "manifest.h"

namespace dsak {

struct SeenDevice {
  Vendor vendor;
  std::string name;  // may be empty
  std::string arch;  // "sm_90", "gfx950"; empty where it cannot be known without the driver
};

// Through NVML, or /proc without it, and through the KFD's sysfs. `root` stands before both paths.
std::vector<SeenDevice> discover(const std::string& root = "");

}  // namespace dsak
