// Element types: the names that manifests use and their DLPack codes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsak {

struct DType {
  const char* name;
  uint8_t code, bits;
  int64_t bytes() const { return bits / 8; }
};

// Null when the name is unknown.
const DType* find_dtype(std::string_view name);

// "bf16", or "float64" for what no kernel takes, or "type 9 of 8 bits".
std::string dtype_name(uint8_t code, uint8_t bits, uint16_t lanes);

}  // namespace dsak
