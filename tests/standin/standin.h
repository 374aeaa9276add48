// A driver library for tests: devices as configured, every call recorded, failures on demand.
//
// Made-up code objects are an ELF header followed by text that ends with a zero byte, one line per kernel: its name and its
// number of arguments. The stand-in reads it to know how many arguments a launch has.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace standin {

struct Function {
  std::string name;
  int num_args;
  int device;
};

struct Module {
  int device;
  std::vector<std::pair<std::string, int>> kernels;
  std::vector<std::unique_ptr<Function>> functions;
};

struct State {
  std::mutex mutex;
  std::vector<std::string> archs{"9.0"};  // one per device
  int version = 12090;
  int sm_count = 132;
  bool quiet = false;
  std::string log;
  std::string fail_call;
  int fail_code = 0, fail_after = 0;
  std::vector<std::unique_ptr<Module>> modules;
};

State& state();

// Record `call` with `details`; the code to return, 0 unless a failure was asked for.
int enter(const std::string& call, const std::string& details = "");

Module* add_module(const void* image, int device);
Function* find_function(Module* module, const char* symbol);
std::string launch_text(const Function& f, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                        const void* stream, void** args);

}  // namespace standin
