// The few names of the C++ standard library that device code and TileLang's templates use.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DSAK_DEVICE __attribute__((device, host)) constexpr

namespace std {

using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::size_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;

template <typename T, T v>
struct integral_constant {
  static constexpr T value = v;
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <typename A, typename B>
inline constexpr bool is_same_v = __is_same(A, B);
template <typename A, typename B>
struct is_same : integral_constant<bool, __is_same(A, B)> {};

template <bool, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  using type = T;
};
template <bool c, typename T = void>
using enable_if_t = typename enable_if<c, T>::type;

template <bool, typename A, typename B>
struct conditional {
  using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool c, typename A, typename B>
using conditional_t = typename conditional<c, A, B>::type;

template <typename T>
using remove_reference_t = __remove_reference_t(T);
template <typename T>
using remove_cv_t = __remove_cv(T);

template <typename A, typename B>
struct pair {
  A first;
  B second;
};
template <typename A, typename B>
DSAK_DEVICE pair<A, B> make_pair(A a, B b) {
  return {a, b};
}

template <typename T>
DSAK_DEVICE T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
DSAK_DEVICE T min(T a, T b) {
  return b < a ? b : a;
}

}  // namespace std

#undef DSAK_DEVICE
