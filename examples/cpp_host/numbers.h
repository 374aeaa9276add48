// bf16 and e4m3 on the host: just what the example needs to check the GPU's numbers by itself.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline uint16_t bf16_from_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float float_from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline float float_from_e4m3(uint8_t x) {
  const int exponent = (x >> 3) & 15, mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  const float magnitude =
      exponent ? std::ldexp(static_cast<float>(8 + mantissa), exponent - 10) : std::ldexp(static_cast<float>(mantissa), -9);
  return x & 0x80 ? -magnitude : magnitude;
}

// Round to nearest even, saturating at 448.
inline uint8_t e4m3_from_float(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7f;
  if (magnitude == 0.f) return sign;
  if (magnitude >= 448.f) return sign | 0x7e;
  int exponent;
  std::frexp(magnitude, &exponent);                        // magnitude < 2^exponent
  const int unit = exponent - 4 < -9 ? -9 : exponent - 4;  // log2 of the step between neighbours
  const long steps = std::lrint(std::ldexp(magnitude, -unit));
  // steps is 0..16; counting on from the first value of the binade gives the code, carries included
  return sign | static_cast<uint8_t>(unit == -9 ? steps : ((unit + 10 - 1) << 3) + steps);
}
