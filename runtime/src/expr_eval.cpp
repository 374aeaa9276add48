#include <cstring>

#include "error.h"
#include "expr.h"
#include "expr_code.h"

namespace dsak {
namespace {

constexpr const char* kOverflow = "int64 overflow";
constexpr const char* kIntegers = "integers wanted";
constexpr const char* kZero = "division by zero";
constexpr const char* kArithmetic = "arithmetic on a string";
constexpr const char* kCompareString = "a string compares with == or != to a string only";
constexpr const char* kTruthString = "a string is neither true nor false";

double as_double(const Value& v) { return v.type == Type::kFloat ? v.f : static_cast<double>(v.i); }
bool is_string(const Value& v) { return v.type == Type::kString; }
bool both_int(const Value& a, const Value& b) { return a.type == Type::kInt && b.type == Type::kInt; }

// Each helper leaves its result in `a` and returns null, or the reason why there is none.
const char* arithmetic(Code code, Value& a, const Value& b) noexcept {
  if (is_string(a) || is_string(b)) return kArithmetic;
  if (both_int(a, b)) {
    int64_t r = 0;
    const bool over = code == kAdd   ? __builtin_add_overflow(a.i, b.i, &r)
                      : code == kSub ? __builtin_sub_overflow(a.i, b.i, &r)
                                     : __builtin_mul_overflow(a.i, b.i, &r);
    a = Value::of(r);
    return over ? kOverflow : nullptr;
  }
  const double x = as_double(a), y = as_double(b);
  a = Value::of(code == kAdd ? x + y : code == kSub ? x - y : x * y);
  return nullptr;
}

const char* division(Code code, Value& a, const Value& b) noexcept {
  if (!both_int(a, b)) return kIntegers;
  if (b.i == 0) return kZero;
  if (b.i == -1) {  // the one divisor whose quotient can overflow
    if (code == kMod) {
      a.i = 0;
      return nullptr;
    }
    return __builtin_sub_overflow(int64_t{0}, a.i, &a.i) ? kOverflow : nullptr;
  }
  const int64_t q = a.i / b.i, r = a.i % b.i;
  const bool same_sign = (r < 0) == (b.i < 0);
  switch (code) {
    case kFloorDiv: a.i = q - (r != 0 && !same_sign); break;
    case kMod: a.i = r != 0 && !same_sign ? r + b.i : r; break;
    default: a.i = q + (r != 0 && same_sign); break;
  }
  return nullptr;
}

const char* pow2(Value& a) noexcept {
  if (a.type != Type::kInt) return kIntegers;
  int64_t r = 1;
  while (r < a.i) {
    if (r > INT64_MAX / 2) return kOverflow;
    r *= 2;
  }
  a.i = r;
  return nullptr;
}

template <class T>
bool holds(Code code, T x, T y) {
  switch (code) {
    case kEq: return x == y;
    case kNe: return x != y;
    case kLt: return x < y;
    case kLe: return x <= y;
    case kGt: return x > y;
    default: return x >= y;
  }
}

const char* compare(Code code, Value& a, const Value& b) noexcept {
  if (is_string(a) || is_string(b)) {
    if (!is_string(a) || !is_string(b) || (code != kEq && code != kNe)) return kCompareString;
    a = Value::of(int64_t{holds(code, a.i, b.i)});
  } else if (both_int(a, b)) {
    a = Value::of(int64_t{holds(code, a.i, b.i)});
  } else {
    a = Value::of(int64_t{holds(code, as_double(a), as_double(b))});
  }
  return nullptr;
}

const char* extreme(Code code, Value& a, const Value& b) noexcept {
  if (is_string(a) || is_string(b)) return kArithmetic;
  if (both_int(a, b)) {
    if (code == kMin ? b.i < a.i : b.i > a.i) a.i = b.i;
  } else {
    const double x = as_double(a), y = as_double(b);
    a = Value::of((code == kMin ? y < x : y > x) ? y : x);
  }
  return nullptr;
}

const char* truth(const Value& v, bool* out) noexcept {
  if (is_string(v)) return kTruthString;
  *out = v.type == Type::kFloat ? v.f != 0 : v.i != 0;
  return nullptr;
}

// Instructions that replace the top of the stack.
const char* unary(Code code, Value& a) noexcept {
  bool t = false;
  switch (code) {
    case kNegate: {
      const Value b = a;
      a = Value::of(int64_t{0});
      return arithmetic(kSub, a, b);
    }
    case kPow2: return pow2(a);
    case kNumber: return is_string(a) ? kArithmetic : nullptr;
    case kToFloat:
      if (is_string(a)) return kArithmetic;
      a = Value::of(as_double(a));
      return nullptr;
    default: {  // kNot, kTruth
      const char* why = truth(a, &t);
      a = Value::of(int64_t{t == (code == kTruth)});
      return why;
    }
  }
}

const char* binary(Code code, Value& a, const Value& b) noexcept {
  switch (code) {
    case kAdd:
    case kSub:
    case kMul: return arithmetic(code, a, b);
    case kFloorDiv:
    case kMod:
    case kCeilDiv: return division(code, a, b);
    case kMin:
    case kMax: return extreme(code, a, b);
    default: return compare(code, a, b);
  }
}

}  // namespace

bool Expr::run(const int64_t* slots, Value* out, const char** reason) const noexcept {
  Value stack[kMaxDepth];
  int n = 0;  // values on the stack; the parser bounded the depth
  const char* why = nullptr;
  const int count = static_cast<int>(program_.size());
  for (int pc = 0; pc < count && why == nullptr; ++pc) {
    const Instruction& x = program_[static_cast<size_t>(pc)];
    bool t = false;
    switch (x.code) {
      case kPush: {
        Value v{x.type, {0}};
        v.i = x.immediate;
        if (x.type == Type::kFloat) std::memcpy(&v.f, &x.immediate, sizeof v.f);
        stack[n++] = v;
        break;
      }
      case kLoad: stack[n++] = load(slots, x.operand, x.type); break;
      case kNegate:
      case kNot:
      case kPow2:
      case kToFloat:
      case kNumber:
      case kTruth: why = unary(static_cast<Code>(x.code), stack[n - 1]); break;
      case kInStart: stack[n++] = Value::of(int64_t{0}); break;
      case kInStep: {
        Value left = stack[n - 3];
        why = compare(kEq, left, stack[n - 1]);
        if (why == nullptr) stack[n - 2].i |= left.i;
        --n;
        break;
      }
      case kInEnd:
        stack[n - 2] = stack[n - 1];
        --n;
        break;
      case kAndJump:
      case kOrJump:
        why = truth(stack[--n], &t);
        if (t == (x.code == kOrJump)) {
          stack[n++] = Value::of(int64_t{t});
          pc += x.operand;
        }
        break;
      case kJumpFalse:
        why = truth(stack[--n], &t);
        if (!t) pc += x.operand;
        break;
      case kJump: pc += x.operand; break;
      default: --n; why = binary(static_cast<Code>(x.code), stack[n - 1], stack[n]);
    }
  }
  if (why != nullptr) {
    *reason = why;
    return false;
  }
  *out = stack[0];
  return true;
}

std::string to_text(const Value& value, const Strings& strings) {
  switch (value.type) {
    case Type::kInt: return cat(value.i);
    case Type::kFloat: return cat(value.f);
    default: return cat('\'', strings.text(value.i), '\'');
  }
}

std::string Expr::values(const int64_t* slots, const Strings& strings) const {
  std::string out;
  for (const Variable& v : variables_) {
    if (!out.empty()) out += ", ";
    out += cat(v.name, " = ", to_text(load(slots, v.slot, v.type), strings));
  }
  return out;
}

}  // namespace dsak
