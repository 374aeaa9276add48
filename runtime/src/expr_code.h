// Instruction codes shared by the parser and the evaluator.
#pragma once

#include <cstdint>

namespace dsak {

enum Code : uint8_t {
  kPush,
  kLoad,
  kNegate,
  kNot,
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kCeilDiv,
  kPow2,
  kToFloat,
  kNumber,  // refuse a string on top of the stack
  kMin,
  kMax,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kInStart,  // push the accumulator of `in`
  kInStep,   // compare the element on top with the value below the accumulator
  kInEnd,
  kTruth,
  kAndJump,  // pop; when false push 0 and jump
  kOrJump,   // pop; when true push 1 and jump
  kJumpFalse,
  kJump,
};

constexpr int kMaxDepth = 64;

}  // namespace dsak
