#include "error.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace dsak {

void append(std::string& out, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  // snprintf follows the host's locale; messages do not.
  std::replace(text, text + std::strlen(text), ',', '.');
  out += text;
}

dsak_status report(dsak_error* error, dsak_status code, std::string_view message) noexcept {
  constexpr size_t head = offsetof(dsak_error, message);
  if (error == nullptr || error->struct_size < head) return code;
  error->code = code;
  const size_t room = std::min(error->struct_size - head, sizeof error->message);
  if (room == 0) return code;
  size_t n = std::min(message.size(), room - 1);
  // Do not cut a UTF-8 sequence in half.
  if (n < message.size())
    while (n > 0 && (static_cast<unsigned char>(message[n]) & 0xC0) == 0x80) --n;
  std::memcpy(error->message, message.data(), n);
  error->message[n] = '\0';
  return code;
}

}  // namespace dsak
