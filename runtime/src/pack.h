// A pack: manifest.json and content-addressed objects, in a directory or in the program. Every object is checked before anybody
// uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsa_kernels.h"
#include "manifest.h"

namespace dsak {

using Bytes = std::vector<uint8_t>;

class Pack {
 public:
  // Reads the manifest only. Throws Error.
  explicit Pack(std::string directory);
  explicit Pack(const dsak_embedded_pack& embedded);

  const std::string& directory() const { return directory_; }  // of an embedded pack, words in its place
  const Manifest& manifest() const { return manifest_; }
  std::string digest() const;  // sha256 of manifest.json as it was read

  // The object's bytes once presence, size, sha256 and architecture are as the manifest says. The bytes are a private
  // copy, so that nobody can change them between this check and the driver.
  Bytes read(const ObjectDecl& object) const;

 private:
  Pack(std::string directory, const dsak_embedded_pack* embedded);
  Bytes file(const std::string& name, size_t limit) const;

  std::string directory_;
  const dsak_embedded_pack* embedded_;  // null where the pack is a directory
  Bytes text_;                          // of manifest.json
  Manifest manifest_;
};

}  // namespace dsak
