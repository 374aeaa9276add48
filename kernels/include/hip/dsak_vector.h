// char1 ... double4: plain structures, aligned so that a copy is one load and one store.
#pragma once

#define DSAK_DEVICE static __attribute__((device)) inline __attribute__((always_inline))
#define DSAK_VECTORS(T, name)                                                                    \
  struct __attribute__((aligned(sizeof(T)))) name##1 { T x; };                                   \
  struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; };                            \
  struct name##3 { T x, y, z; };                                                                 \
  struct __attribute__((aligned(sizeof(T) < 8 ? 4 * sizeof(T) : 16))) name##4 { T x, y, z, w; }; \
  DSAK_DEVICE name##1 make_##name##1(T x) { return {x}; }                                        \
  DSAK_DEVICE name##2 make_##name##2(T x, T y) { return {x, y}; }                                \
  DSAK_DEVICE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                        \
  DSAK_DEVICE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

DSAK_VECTORS(signed char, char)
DSAK_VECTORS(unsigned char, uchar)
DSAK_VECTORS(short, short)
DSAK_VECTORS(unsigned short, ushort)
DSAK_VECTORS(int, int)
DSAK_VECTORS(unsigned, uint)
DSAK_VECTORS(long, long)
DSAK_VECTORS(unsigned long, ulong)
DSAK_VECTORS(long long, longlong)
DSAK_VECTORS(unsigned long long, ulonglong)
DSAK_VECTORS(float, float)
DSAK_VECTORS(double, double)

#undef DSAK_VECTORS
#undef DSAK_DEVICE
