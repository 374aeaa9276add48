// Number formats, on the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace numbers {

inline float from_bits(std::uint32_t x) {
  float f;
  std::memcpy(&f, &x, 4);
  return f;
}
inline std::uint32_t to_bits(float f) {
  std::uint32_t x;
  std::memcpy(&x, &f, 4);
  return x;
}

inline float from_bf16(std::uint16_t x) { return from_bits(static_cast<std::uint32_t>(x) << 16); }
inline std::uint16_t to_bf16(float f) {
  const std::uint32_t x = to_bits(f);
  return std::isnan(f) ? 0x7fff : static_cast<std::uint16_t>((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

inline float from_half(std::uint16_t x) {
  _Float16 h;
  std::memcpy(&h, &x, 2);
  return static_cast<float>(h);
}
inline std::uint16_t to_half(float f) {
  const _Float16 h = static_cast<_Float16>(f);
  std::uint16_t x;
  std::memcpy(&x, &h, 2);
  return x;
}

inline float from_e4m3(std::uint8_t x) {
  const int exponent = (x >> 3) & 15, mantissa = x & 7;
  float f = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((x & 0x7f) == 0x7f) f = NAN;
  return x & 0x80 ? -f : f;
}
// Nearest even, saturating; a NaN stays.
inline std::uint8_t to_e4m3(float f) {
  if (std::isnan(f)) return 0x7f;
  const std::uint8_t sign = std::signbit(f) ? 0x80 : 0;
  const float a = std::fabs(f);
  if (a >= 448) return sign | 0x7e;
  if (a < 0.015625f) return sign | static_cast<std::uint8_t>(std::nearbyint(std::ldexp(a, 9)));
  int exponent;
  std::frexp(a, &exponent);
  int mantissa = static_cast<int>(std::nearbyint(std::ldexp(a, 4 - exponent)));  // 8..16
  if (mantissa == 16) mantissa = 8, ++exponent;
  return sign | static_cast<std::uint8_t>((exponent + 6) << 3 | (mantissa - 8));
}

}  // namespace numbers
