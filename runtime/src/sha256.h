// SHA-256 (FIPS 180-4).
#pragma once

#include <cstddef>
#include <string>

namespace dsak {

// Lower-case hexadecimal digest of `size` bytes at `data`.
std::string sha256_hex(const void* data, size_t size);

}  // namespace dsak
