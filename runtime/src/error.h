// Errors inside the library: thrown where a call cannot go on, turned into dsak_error at the C boundary.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include "dsa_kernels.h"

namespace dsak {

struct Error {
  dsak_status code;
  std::string message;
};

inline void append(std::string& out, std::string_view text) { out.append(text); }
inline void append(std::string& out, const std::string& text) { out.append(text); }
inline void append(std::string& out, const char* text) { out.append(text); }
inline void append(std::string& out, char c) { out.push_back(c); }
void append(std::string& out, double value);

template <class Integer>
std::enable_if_t<std::is_integral_v<Integer>> append(std::string& out, Integer value) {
  out += std::to_string(value);
}

// The arguments written one after the other.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

template <class... Parts>
[[noreturn]] void fail(dsak_status code, const Parts&... parts) {
  throw Error{code, cat(parts...)};
}

// "a, b, c" from a range of strings.
template <class Range>
std::string join(const Range& items, std::string_view separator = ", ") {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += separator;
    append(out, item);
  }
  return out;
}

// Fill `error`, if there is one, within the size that the caller compiled with. Returns `code`.
dsak_status report(dsak_error* error, dsak_status code, std::string_view message) noexcept;

// Run `body` and turn what it throws into a status.
template <class Body>
dsak_status guarded(dsak_error* error, Body&& body) noexcept {
  try {
    body();
    return DSAK_OK;
  } catch (const Error& e) {
    return report(error, e.code, e.message);
  } catch (const std::exception& e) {
    return report(error, DSAK_ERR_INTERNAL, e.what());
  } catch (...) {
    return report(error, DSAK_ERR_INTERNAL, "unknown exception");
  }
}

}  // namespace dsak
