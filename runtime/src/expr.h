// Expressions over a call, the grammar of aot/expr.py: parsed once into a flat postfix program over slots, evaluated
// without allocation. A slot is one 64-bit word whose type is fixed when the expression is parsed.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace dsak {

enum class Type : uint8_t { kInt, kFloat, kString };

struct Value {
  Type type;
  union {
    int64_t i;  // an integer, or the number of an interned string
    double f;
  };
  static Value of(int64_t v) {
    Value r{Type::kInt, {0}};
    r.i = v;
    return r;
  }
  static Value of(double v) {
    Value r{Type::kFloat, {0}};
    r.f = v;
    return r;
  }
};

inline Value load(const int64_t* slots, int index, Type type) {
  Value v{type, {0}};
  std::memcpy(&v.i, slots + index, sizeof v.i);
  if (type == Type::kFloat) std::memcpy(&v.f, slots + index, sizeof v.f);
  return v;
}

// Interned strings; number 0 is the empty string.
class Strings {
 public:
  int64_t intern(std::string_view text);
  const std::string& text(int64_t number) const { return texts_[static_cast<size_t>(number)]; }

 private:
  std::vector<std::string> texts_{std::string()};
};

// Where the variables of an expression live.
class Names {
 public:
  virtual ~Names() = default;
  // Slot and type of `name` ("T", "q.s0", "has(q)"); false when there is none.
  virtual bool find(std::string_view name, int* slot, Type* type) const = 0;
};

class Expr {
 public:
  struct Variable {
    std::string name;
    int slot;
    Type type;
  };
  struct Instruction {
    uint8_t code;
    Type type;
    int32_t operand;  // slot, or a jump relative to the next instruction
    int64_t immediate;
  };

  Expr() = default;  // the constant 0
  // Throws Error (DSAK_ERR_PACK_SCHEMA) saying what was found.
  static Expr parse(std::string_view text, const Names& names, Strings& strings);

  // False, with a reason of static storage, where the expression has no value.
  bool eval(const int64_t* slots, Value* out, const char** reason) const noexcept {
    if (form_ == Form::kConstant) {
      *out = constant_;
      return true;
    }
    if (form_ == Form::kSlot) {
      *out = load(slots, slot_, constant_.type);
      return true;
    }
    return run(slots, out, reason);
  }

  const std::string& text() const { return text_; }
  const std::vector<Variable>& variables() const { return variables_; }
  // "H = 20, q.s0 = 64"
  std::string values(const int64_t* slots, const Strings& strings) const;
  bool is_constant() const { return form_ == Form::kConstant; }
  bool is_variable() const { return form_ == Form::kSlot; }
  const Value& constant() const { return constant_; }

 private:
  enum class Form : uint8_t { kConstant, kSlot, kProgram };
  bool run(const int64_t* slots, Value* out, const char** reason) const noexcept;

  Form form_ = Form::kConstant;
  int slot_ = 0;
  Value constant_ = Value::of(int64_t{0});  // for kSlot only its type counts
  std::vector<Instruction> program_;
  std::string text_ = "0";
  std::vector<Variable> variables_;

  friend class Parser;
};

// The parts of `text` that its top-level `and` joins, parentheses removed: guards are checked and explained part by part.
std::vector<std::string> conjuncts(std::string_view text);

std::string to_text(const Value& value, const Strings& strings);

}  // namespace dsak
