#include "standin.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace standin {

State& state() {
  static State* s = new State;  // outlives every test
  return *s;
}

int enter(const std::string& call, const std::string& details) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.quiet) s.log += call + (details.empty() ? "" : " " + details) + "\n";
  if (s.fail_code == 0 || call != s.fail_call || s.fail_after-- > 0) return 0;
  return s.fail_code;
}

Module* add_module(const void* image, int device) {
  constexpr int kHeader = 64;
  auto m = std::make_unique<Module>();
  m->device = device;
  std::istringstream text(static_cast<const char*>(image) + kHeader);
  std::string name;
  int num_args = 0;
  while (text >> name >> num_args) m->kernels.emplace_back(name, num_args);
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.modules.push_back(std::move(m));
  return s.modules.back().get();
}

Function* find_function(Module* module, const char* symbol) {
  for (const auto& [name, num_args] : module->kernels)
    if (name == symbol) {
      module->functions.push_back(std::make_unique<Function>(Function{name, num_args, module->device}));
      return module->functions.back().get();
    }
  return nullptr;
}

std::string launch_text(const Function& f, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                        const void* stream, void** args) {
  char text[256];
  std::snprintf(text, sizeof text, "%s device=%d grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%#llx args=", f.name.c_str(),
                f.device, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared,
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(stream)));
  std::string out = text;
  for (int i = 0; i < f.num_args; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, args[i], sizeof word);
    std::snprintf(text, sizeof text, "%s%#llx", i > 0 ? "," : "", static_cast<unsigned long long>(word));
    out += text;
  }
  return out;
}

}  // namespace standin

using standin::state;

// The calls so far, one per line; the caller frees the copy with standin_free.
STANDIN_API char* standin_log() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return strdup(state().log.c_str());
}
STANDIN_API void standin_free(char* text) { std::free(text); }

// Forget calls and failures; `archs` is a list such as "9.0 9.0" or "gfx950:sramecc+:xnack-", one per device.
STANDIN_API void standin_reset(const char* archs, int version, int sm_count) {
  standin::State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.log.clear();
  s.fail_code = 0;
  s.version = version;
  s.sm_count = sm_count;
  s.archs.clear();
  std::istringstream in(archs);
  for (std::string a; in >> a;) s.archs.push_back(a);
}
STANDIN_API void standin_clear() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().log.clear();
}
STANDIN_API void standin_quiet(int on) { state().quiet = on != 0; }

// Let `call` return `code` (0: work again) once it has succeeded `after` more times.
STANDIN_API void standin_fail(const char* call, int code, int after) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().fail_call = call;
  state().fail_code = code;
  state().fail_after = after;
}
