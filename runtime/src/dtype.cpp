#include "dtype.h"

#include "error.h"

namespace dsak {
namespace {

constexpr DType kTypes[] = {{"bf16", 4, 16}, {"f16", 2, 16}, {"f32", 2, 32},    {"i32", 0, 32},
                            {"i64", 0, 64},  {"u8", 1, 8},   {"e4m3fn", 10, 8}, {"e4m3fnuz", 11, 8}};

}  // namespace

const DType* find_dtype(std::string_view name) {
  for (const DType& t : kTypes)
    if (name == t.name) return &t;
  return nullptr;
}

std::string dtype_name(uint8_t code, uint8_t bits, uint16_t lanes) {
  std::string name;
  for (const DType& t : kTypes)
    if (t.code == code && t.bits == bits) name = t.name;
  if (name.empty()) {
    switch (code) {
      case 0: name = cat("int", bits); break;
      case 1: name = cat("uint", bits); break;
      case 2: name = cat("float", bits); break;
      case 4: name = cat("bfloat", bits); break;
      case 5: name = cat("complex", bits); break;
      case 6: name = "bool"; break;
      case 12: name = "e5m2"; break;
      case 13: name = "e5m2fnuz"; break;
      default: name = cat("DLPack type ", code, " of ", bits, " bits");
    }
  }
  return lanes == 1 ? name : cat(name, 'x', lanes);
}

}  // namespace dsak
