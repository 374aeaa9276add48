// manifest.json as structs. Expressions stay text here; plan.h compiles them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsak {

enum class Vendor : uint8_t { kNvidia = 0, kAmd = 1 };

struct Target {
  std::string name;
  Vendor vendor;
  std::string arch;         // as compilers take it: sm_90a
  std::string device_arch;  // as a device reports it: sm_90
  int64_t shared_memory, units, elf_machine, elf_abi, elf_flags, elf_flags_mask, min_driver;
};

struct ObjectDecl {
  std::string sha256, file, kernel;
  int64_t size;
  std::string resources;  // JSON
};

struct ArgDecl {
  std::string name, type, value, offset;
  uint32_t box[2] = {0, 1};  // of a map: lines (0: all) and rows
};

struct KernelDecl {
  std::string object, symbol;
  uint32_t block[3], shared;
  bool dependent;  // waits for the kernels before it on the stream by itself
  size_t args;     // number among the op's lists
};

struct LaunchDecl {
  size_t kernel;  // number among the op's
  std::string grid[3];
  uint32_t cluster[3];
};

struct CandidateDecl {
  std::string name, when, workspace;
  std::vector<LaunchDecl> launches;
};

struct ParamDecl {
  bool tensor, optional = false, output = false, has_default = false;
  std::string name, layout, dtype, default_value;
  std::vector<std::string> dtypes, shape, choices;
  std::vector<bool> at_least;
  int64_t align = 1;
};

struct RuleDecl {
  std::string check, wanted, fix;
};

struct OpDecl {
  std::string name, doc;
  std::vector<ParamDecl> params;
  std::string params_json;
  std::vector<std::string> symbols;
  std::vector<RuleDecl> rules;
  std::vector<std::vector<ArgDecl>> args;
  std::vector<KernelDecl> kernels;
  std::vector<CandidateDecl> candidates;
};

struct Manifest {
  std::string schema_version, package, toolchain;  // the last two as JSON
  Target target;
  std::vector<ObjectDecl> objects;  // sorted by sha256
  std::vector<OpDecl> ops;

  const ObjectDecl* object(std::string_view sha256) const;
  const OpDecl* op(std::string_view name) const;
};

// Throws Error (DSAK_ERR_PACK_SCHEMA) with the JSON path of what is wrong; `where` names the file.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace dsak
