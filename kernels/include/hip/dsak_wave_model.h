// The instructions of dsak_wave.h in plain C++: 64 threads that keep together stand for a wave. Slow, and never shipped: tests
// run the kernel's logic with it, on an NVIDIA GPU or on the CPU. Lanes exchange operands through memory and meet at a barrier
// of theirs.
#define __builtin_memcpy memcpy
#define DSAK_WAVE static __device__ __noinline__  // a kernel calls hundreds of them
#ifndef DSAK_MEET
#define DSAK_MEET() asm volatile("bar.sync %0, 64;" ::"r"(1 + int(threadIdx.x) / 64) : "memory")
#endif
#ifndef DSAK_FNUZ
#define DSAK_FNUZ 0  // e4m3fnuz in place of e4m3fn: one more exponent below, one less above, no -0, NaN is 0x80
#endif

__shared__ float dsak_operands[4][64][16];
__shared__ unsigned long long dsak_words[4][64];

DSAK_WAVE float dsak_bits(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

DSAK_WAVE float dsak_e4m3(unsigned char byte) {
  const unsigned exponent = byte >> 3 & 15, fraction = byte & 7;
  if (byte == 0x80 && DSAK_FNUZ || (byte & 0x7f) == 0x7f && !DSAK_FNUZ) return dsak_bits(0x7fc00000);
  const float value =
      exponent ? dsak_bits((exponent + 120 - DSAK_FNUZ) << 23 | fraction << 20) : fraction * dsak_bits((118 - DSAK_FNUZ) << 23);
  return byte & 0x80 ? -value : value;
}

// To nearest even; beyond the largest value it saturates.
DSAK_WAVE unsigned char dsak_to_e4m3(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  const unsigned sign = bits >> 24 & 0x80;
  const float size = dsak_bits(bits & 0x7fffffff), most = DSAK_FNUZ ? 240.f : 448.f;
  unsigned low = 0, high = DSAK_FNUZ ? 0x7f : 0x7e;
  if (!(size < most)) return sign | high;
  while (high - low > 1) {  // the codes are in the order of their values
    const unsigned middle = (low + high) / 2;
    (dsak_e4m3(middle) <= size ? low : high) = middle;
  }
  const float below = size - dsak_e4m3(low), above = dsak_e4m3(high) - size;
  const unsigned code = below < above || below == above && low % 2 == 0 ? low : high;
  return code || !DSAK_FNUZ ? sign | code : 0;
}

template <typename T>
DSAK_WAVE float dsak_value(const T* from) {
  if constexpr (sizeof(T) == 1) {
    return dsak_e4m3(*reinterpret_cast<const unsigned char*>(from));
  } else {
    return dsak_bits(unsigned(*reinterpret_cast<const unsigned short*>(from)) << 16);
  }
}

template <typename T>
DSAK_WAVE void dsak_mma(float* d, const T* a, const T* b) {
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64, i = lane % 16, g = lane / 16;
  auto* operands = dsak_operands[wave];
  for (int k = 0; k < 8; ++k) {
    operands[lane][k] = dsak_value(a + k);
    operands[lane][8 + k] = dsak_value(b + k);
  }
  DSAK_MEET();
  for (int r = 0; r < 4; ++r)
    for (int from = 0; from < 4; ++from)
      for (int k = 0; k < 8; ++k) d[r] += operands[16 * from + 4 * g + r][k] * operands[16 * from + i][8 + k];
  DSAK_MEET();
}

template <typename T>
DSAK_WAVE void dsak_mma_deep(float* d, const T* a, const T* b) {
  for (int part = 0; part < 4; ++part) dsak_mma(d, a + 8 * part, b + 8 * part);
}

// Eight bytes from the address of each lane; lane i of a group gets the elements that lie i-th in each row of the group.
template <typename T>
DSAK_WAVE void dsak_transposed_once(T* to, const T* from) {
  constexpr int width = 8 / sizeof(T), lanes = 16 / width;
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64, i = lane % 16;
  dsak_words[wave][lane] = *reinterpret_cast<const unsigned long long*>(from);
  DSAK_MEET();
  for (int row = 0; row < width; ++row)
    to[row] = reinterpret_cast<const T*>(&dsak_words[wave][lane - i + lanes * row + i / width])[i % width];
  DSAK_MEET();
}

template <typename T>
DSAK_WAVE void dsak_transposed(T* to, const T* first, const T* second) {
  dsak_transposed_once(to, first);
  if constexpr (sizeof(T) == 2) dsak_transposed_once(to + 4, second);
}

DSAK_WAVE unsigned dsak_bytes(unsigned low, unsigned high, unsigned select) {
  unsigned result = 0;
  for (int byte = 0; byte < 4; ++byte) {
    const unsigned from = select >> 8 * byte & 7;
    result |= ((from < 4 ? low : high) >> 8 * (from & 3) & 0xff) << 8 * byte;
  }
  return result;
}

template <typename T>
DSAK_WAVE void dsak_round(T* to, const float* p) {
  for (int k = 0; k < 8; ++k) {
    if constexpr (sizeof(T) == 1) {
      *reinterpret_cast<unsigned char*>(to + k) = dsak_to_e4m3(p[k]);
    } else {
      unsigned bits;
      __builtin_memcpy(&bits, p + k, 4);
      *reinterpret_cast<unsigned short*>(to + k) = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
  }
}

template <typename T>
DSAK_WAVE float dsak_sum(const T* p) {
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += dsak_value(p + k);
  return sum;
}

template <typename T>
DSAK_WAVE void dsak_rest(float* p, const T* from) {
  for (int k = 0; k < 8; ++k) p[k] -= dsak_value(from + k);
}

DSAK_WAVE float dsak_across(float value, int mask) {
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64;
  dsak_operands[wave][lane][0] = value;
  DSAK_MEET();
  value = dsak_operands[wave][lane ^ mask][0];
  DSAK_MEET();
  return value;
}
