// An op of one pack, compiled: every name is a slot, every expression a program. Read-only once built.
//
// Slots hold what a call says, first the part that comes straight from its arguments ("raw": presence, dtype, sizes and
// strides of tensors, values of scalars), then what follows from it (dimension symbols) and from the device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"
#include "expr.h"
#include "manifest.h"

namespace dsak {

constexpr int kMaxSlots = 512, kMaxTensors = 64;

enum class Layout : uint8_t { kAny, kRows, kContiguous };

// slot + kHas and + kDType, then `rank` sizes, then `rank` strides.
enum TensorSlot : int { kHas = 0, kDType = 1, kSizes = 2 };

// slot + kValue and + kGiven.
enum ScalarSlot : int { kValue = 0, kGiven = 1 };

enum class ScalarKind : uint8_t { kF32, kI32, kI64, kChoice };

struct ParamPlan {
  bool tensor;
  std::string name;
  int slot = 0;

  // Tensors.
  int index = 0;  // among the tensors
  int rank = 0;
  bool optional = false, output = false;
  Layout layout = Layout::kAny;
  uint64_t align = 1;
  struct Allowed {
    DType type;
    int64_t name;  // interned
  };
  std::vector<Allowed> dtypes;
  std::vector<Expr> dims;
  std::vector<bool> at_least;

  // Scalars.
  ScalarKind kind = ScalarKind::kF32;
  bool has_default = false;
  Expr default_value;
  struct Choice {
    std::string word;
    int64_t name;
  };
  std::vector<Choice> choices;

  int size_slot(int dim) const { return slot + kSizes + dim; }
  int stride_slot(int dim) const { return slot + kSizes + rank + dim; }
};

struct SymbolPlan {
  std::string name;
  int slot;
  struct Source {
    int has_slot, size_slot;
    const ParamPlan* param;
  };
  std::vector<Source> sources;  // the first one that is present binds the symbol
};

struct RulePlan {
  Expr check;
  std::string wanted, fix;
};

struct ArgPlan {
  enum Kind : uint8_t { kPointer, kMap, kNull, kI32, kI64, kF32 } kind;
  int tensor;  // of kPointer and kMap; -1 is the workspace
  Expr value;  // of kPointer the offset in bytes
  std::string name;
  uint32_t box[2];  // of kMap: lines (0: all) and rows
};

struct KernelPlan {
  const ObjectDecl* object;
  const KernelDecl* decl;
  const std::vector<ArgPlan>* args;
};

struct LaunchPlan {
  const KernelPlan* kernel;
  Expr grid[3];
  uint32_t cluster[3];
  int function;  // number among the launches of the plan
  uint32_t cluster_size() const { return cluster[0] * cluster[1] * cluster[2]; }
};

struct CandidatePlan {
  std::string name;
  std::vector<Expr> when;  // all must hold
  Expr workspace;
  std::vector<LaunchPlan> launches;
};

struct Plan {
  const OpDecl* op;
  const Target* target;
  Strings strings;
  std::vector<ParamPlan> params;
  std::vector<SymbolPlan> symbols;
  std::vector<RulePlan> rules;
  std::vector<std::vector<ArgPlan>> args;
  std::vector<KernelPlan> kernels;
  std::vector<CandidatePlan> candidates;
  int raw_slots = 0, slots = 0, sm_count_slot = 0, shared_memory_slot = 0;
  int num_tensors = 0, num_functions = 0;
  size_t max_words = 0, max_maps = 0, max_launches = 0;

  // The parameter that is tensor number `index`.
  const ParamPlan* tensor(int index) const;

  // Throws Error (DSAK_ERR_PACK_SCHEMA); `where` names the manifest. The manifest must outlive the plan.
  Plan(const Manifest& manifest, const OpDecl& op, const std::string& where);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

}  // namespace dsak
