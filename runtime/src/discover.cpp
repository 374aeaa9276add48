#include "discover.h"

#include <dirent.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "error.h"
#include "library.h"

namespace dsak {
namespace {

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) return names;
  while (const dirent* e = readdir(dir))
    if (e->d_name[0] != '.') names.emplace_back(e->d_name);
  closedir(dir);
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;  // 2 before 10
  });
  return names;
}

// What follows `key` on its line of a small text file; empty when there is none.
std::string field(const std::string& path, const std::string& key) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  std::string value;
  char line[512];
  while (value.empty() && std::fgets(line, sizeof line, file) != nullptr) {
    const std::string text = line;
    if (text.compare(0, key.size(), key) != 0) continue;
    const size_t begin = text.find_first_not_of(" \t:", key.size());
    const size_t end = text.find_last_not_of(" \t\r\n");
    if (begin != text.npos && end >= begin) value = text.substr(begin, end - begin + 1);
  }
  std::fclose(file);
  return value;
}

bool through_nvml(std::vector<SeenDevice>* out) {
  Library nvml;
  std::string reason;
  int (*init)() = nullptr, (*shutdown)() = nullptr, (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, void**) = nullptr, (*name)(void*, char*, unsigned) = nullptr,
                          (*capability)(void*, int*, int*) = nullptr;
  const bool ready = nvml.open("libnvidia-ml.so.1", &reason) && nvml.find("nvmlInit_v2", &init) &&
                     nvml.find("nvmlShutdown", &shutdown) && nvml.find("nvmlDeviceGetCount_v2", &count) &&
                     nvml.find("nvmlDeviceGetHandleByIndex_v2", &handle) && nvml.find("nvmlDeviceGetName", &name) &&
                     nvml.find("nvmlDeviceGetCudaComputeCapability", &capability) && init() == 0;
  if (!ready) return false;
  unsigned n = 0;
  bool ok = count(&n) == 0;
  for (unsigned i = 0; ok && i < n; ++i) {
    void* device = nullptr;
    char text[96] = "";
    int major = 0, minor = 0;
    if (handle(i, &device) != 0) continue;
    name(device, text, sizeof text);
    SeenDevice d{Vendor::kNvidia, text, ""};
    if (capability(device, &major, &minor) == 0) d.arch = cat("sm_", major, minor);
    out->push_back(std::move(d));
  }
  shutdown();
  return ok;
}

void through_proc(const std::string& root, std::vector<SeenDevice>* out) {
  const std::string gpus = root + "/proc/driver/nvidia/gpus";
  for (const std::string& g : entries(gpus))
    out->push_back({Vendor::kNvidia, field(cat(gpus, '/', g, "/information"), "Model"), ""});
}

// 90500 -> gfx950, 90402 -> gfx942, 90010 -> gfx90a: major, minor and stepping in decimal pairs, the last two hexadecimal.
std::string gfx_name(long version) {
  char text[32];
  std::snprintf(text, sizeof text, "gfx%ld%lx%lx", version / 10000, version / 100 % 100, version % 100);
  return text;
}

void through_kfd(const std::string& root, std::vector<SeenDevice>* out) {
  const std::string nodes = root + "/sys/class/kfd/kfd/topology/nodes";
  for (const std::string& n : entries(nodes)) {
    const std::string version = field(cat(nodes, '/', n, "/properties"), "gfx_target_version");
    const long v = std::strtol(version.c_str(), nullptr, 10);
    if (v > 0) out->push_back({Vendor::kAmd, field(cat(nodes, '/', n, "/name"), ""), gfx_name(v)});  // 0 is a CPU
  }
}

}  // namespace

std::vector<SeenDevice> discover(const std::string& root) {
  std::vector<SeenDevice> out;
  if (!root.empty() || !through_nvml(&out)) {
    out.clear();
    through_proc(root, &out);
  }
  through_kfd(root, &out);
  return out;
}

}  // namespace dsak
