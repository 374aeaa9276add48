#include "pack.h"

#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "error.h"
#include "sha256.h"

namespace dsak {
namespace {

constexpr const char* kAgain = "; build or install the pack again";

struct Close {
  void operator()(std::FILE* f) const { std::fclose(f); }
};

// The file's bytes, at most `limit` of them.
Bytes read_file(const std::string& path, size_t limit) {
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))  // opening a pipe would wait for a writer
    fail(DSAK_ERR_PACK_MISSING, path, ": found no regular file", kAgain);
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) fail(DSAK_ERR_PACK_MISSING, path, ": found no readable file (", std::strerror(errno), ')', kAgain);
  std::setvbuf(file.get(), nullptr, _IONBF, 0);
  Bytes bytes;
  size_t used = 0;
  for (size_t chunk = 1 << 20; used < limit; chunk *= 2) {
    bytes.resize(used + std::min(chunk, limit - used));
    const size_t got = std::fread(bytes.data() + used, 1, bytes.size() - used, file.get());
    used += got;
    if (got == 0) break;
  }
  if (std::ferror(file.get()) != 0)
    fail(DSAK_ERR_PACK_MISSING, path, ": found a file that cannot be read (", std::strerror(errno), ')', kAgain);
  bytes.resize(used);
  return bytes;
}

uint32_t little_endian(const Bytes& b, size_t at, size_t size) {
  uint32_t v = 0;
  for (size_t i = 0; i < size; ++i) v |= uint32_t{b[at + i]} << (8 * i);
  return v;
}

void check_architecture(const std::string& path, const Bytes& b, const Target& t) {
  constexpr size_t kAbi = 8, kMachine = 18, kFlags = 48, kHeader = 64;
  constexpr uint8_t kMagic[] = {0x7F, 'E', 'L', 'F', 2, 1};  // 64 bits, little endian
  if (b.size() < kHeader || std::memcmp(b.data(), kMagic, sizeof kMagic) != 0)
    fail(DSAK_ERR_PACK_ARCH, path, ": found no 64-bit ELF object, wanted one for ", t.name, kAgain);
  const int64_t machine = little_endian(b, kMachine, 2), abi = b[kAbi], flags = little_endian(b, kFlags, 4) & t.elf_flags_mask;
  if (machine != t.elf_machine || abi != t.elf_abi || flags != (t.elf_flags & t.elf_flags_mask))
    fail(DSAK_ERR_PACK_ARCH, path, ": found an object with ELF machine ", machine, ", ABI ", abi, " and flags ", flags,
         ", wanted ", t.elf_machine, ", ", t.elf_abi, " and ", t.elf_flags, " (", t.name, "; flags under mask ",
         t.elf_flags_mask, ')', kAgain);
}

}  // namespace

Pack::Pack(std::string directory) : Pack(std::move(directory), nullptr) {}
Pack::Pack(const dsak_embedded_pack& embedded) : Pack(cat("(in the program) ", embedded.name), &embedded) {}

Pack::Pack(std::string directory, const dsak_embedded_pack* embedded) : directory_(std::move(directory)), embedded_(embedded) {
  text_ = file("manifest.json", SIZE_MAX / 4);
  manifest_ = parse_manifest({reinterpret_cast<const char*>(text_.data()), text_.size()}, cat(directory_, "/manifest.json"));
}

// The bytes of a file of the pack, at most `limit` of them.
Bytes Pack::file(const std::string& name, size_t limit) const {
  const std::string path = cat(directory_, '/', name);
  if (embedded_ == nullptr) return read_file(path, limit);
  for (size_t i = 0; i < embedded_->num_files; ++i) {
    const dsak_file& f = embedded_->files[i];
    const auto* data = static_cast<const uint8_t*>(f.data);
    if (name == f.name) return {data, data + std::min(f.size, limit)};
  }
  fail(DSAK_ERR_PACK_MISSING, path, ": found no such file in the program; build it again with dsa_kernels_embed");
}

std::string Pack::digest() const { return sha256_hex(text_.data(), text_.size()); }

Bytes Pack::read(const ObjectDecl& object) const {
  const std::string path = cat(directory_, '/', object.file);
  const size_t size = static_cast<size_t>(object.size);
  Bytes bytes = file(object.file, size + 1);
  if (bytes.size() != size)
    fail(DSAK_ERR_PACK_TRUNCATED, path, ": found ", bytes.size() > size ? "more than " : "",
         bytes.size() > size ? size : bytes.size(), " bytes, wanted ", size, kAgain);
  const std::string digest = sha256_hex(bytes.data(), bytes.size());
  if (digest != object.sha256) fail(DSAK_ERR_PACK_DIGEST, path, ": found sha256 ", digest, ", wanted ", object.sha256, kAgain);
  check_architecture(path, bytes, manifest_.target);
  return bytes;
}

}  // namespace dsak
