// A pack: a directory with manifest.json and content-addressed objects. Every object is checked before anybody uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manifest.h"

namespace dsak {

using Bytes = std::vector<uint8_t>;

class Pack {
 public:
  // Reads the manifest only. Throws Error.
  explicit Pack(std::string directory);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  std::string digest() const;  // sha256 of manifest.json as it was read

  // The object's bytes once presence, size, sha256 and architecture are as the manifest says. The bytes are a private
  // copy, so that nobody can change them between this check and the driver.
  Bytes read(const ObjectDecl& object) const;

 private:
  std::string directory_;
  Bytes text_;  // of manifest.json
  Manifest manifest_;
};

}  // namespace dsak
