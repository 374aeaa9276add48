// In place of kernels/include/dsak/convert.cuh: number conversions in software.
#pragma once
#include "dsak/types.cuh"

namespace dsak {

inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }

inline u16 to_e4m3x2(float low, float high) { return static_cast<u16>(numbers::to_e4m3(low) | numbers::to_e4m3(high) << 8); }
inline u32 pack_u16(u16 low, u16 high) { return low | static_cast<u32>(high) << 16; }
inline u32 to_e4m3x4(float a, float b, float c, float d) {
  const float x[4] = {a, b, c, d};
  u32 packed = 0;
  for (u32 i = 0; i < 4; ++i) packed |= static_cast<u32>(numbers::to_e4m3(x[i])) << (8 * i);
  return packed;
}
inline void from_e4m3x4(float (&x)[4], u32 packed) {
  for (u32 i = 0; i < 4; ++i) x[i] = numbers::from_e4m3(static_cast<u8>(packed >> (8 * i)));
}
inline u32 to_f16x2(float low, float high) { return numbers::to_half(low) | static_cast<u32>(numbers::to_half(high)) << 16; }
inline void unpack_f16x2(float& low, float& high, u32 pair) {
  low = numbers::from_half(static_cast<u16>(pair));
  high = numbers::from_half(static_cast<u16>(pair >> 16));
}
inline u32 e4m3x2_to_f16x2(u16 packed) {
  return to_f16x2(numbers::from_e4m3(static_cast<u8>(packed)), numbers::from_e4m3(static_cast<u8>(packed >> 8)));
}
inline u32 add_f16x2(u32 a, u32 b) {
  float x[2], y[2];
  unpack_f16x2(x[0], x[1], a);
  unpack_f16x2(y[0], y[1], b);
  return to_f16x2(x[0] + y[0], x[1] + y[1]);
}
inline u32 to_bf16x2(float low, float high) { return numbers::to_bf16(low) | static_cast<u32>(numbers::to_bf16(high)) << 16; }
inline void unpack_bf16x2(float& low, float& high, u32 pair) {
  low = numbers::from_bf16(static_cast<u16>(pair));
  high = numbers::from_bf16(static_cast<u16>(pair >> 16));
}

}  // namespace dsak
