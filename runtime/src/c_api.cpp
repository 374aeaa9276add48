// The C boundary: every function is a few lines around the core and lets no exception out.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "dsa_kernels.h"
#include "error.h"
#include "info.h"
#include "launch.h"
#include "runtime.h"

using namespace dsak;

namespace {

static_assert(sizeof(dsak_tensor) == 48 && offsetof(dsak_tensor, shape) == 24, "the layout of DLPack's DLTensor");

void* require(const void* p, const char* what) {
  if (p == nullptr) fail(DSAK_ERR_ARGUMENT, "found a null ", what, ", wanted a valid one");
  return const_cast<void*>(p);
}

char* copy_text(const std::string& text) {
  char* out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out != nullptr) std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

DeviceKey key_of(int32_t type, int32_t id) {
  if (type != 2 && type != 10) fail(DSAK_ERR_DEVICE, "found DLPack device type ", type, ", wanted 2 (CUDA) or 10 (ROCm)");
  return {type == 2 ? Vendor::kNvidia : Vendor::kAmd, id};
}

Arguments arguments(const dsak_arg* args, size_t count) {
  if (count > 0) require(args, "args");
  return {args, count};
}

}  // namespace

const char* dsak_version(void) { return DSAK_VERSION; }
uint32_t dsak_abi_version(void) { return DSAK_ABI_VERSION; }

dsak_status dsak_open(const dsak_options* options, dsak_runtime** runtime, dsak_error* error) {
  return guarded(error, [&] {
    require(options, "options");
    require(runtime, "runtime");
    *runtime = nullptr;
    dsak_options known{};
    std::memcpy(&known, options, std::min(options->struct_size, sizeof known));
    if (known.num_packs > 0) require(known.packs, "packs");
    for (size_t i = 0; i < known.num_packs; ++i) require(known.packs[i], "pack");
    if (known.num_embedded > 0) require(known.embedded, "embedded");
    for (size_t i = 0; i < known.num_embedded; ++i) {
      require(known.embedded[i], "embedded pack");
      require(known.embedded[i]->name, "name of an embedded pack");
      if (known.embedded[i]->num_files > 0) require(known.embedded[i]->files, "files of an embedded pack");
      for (size_t k = 0; k < known.embedded[i]->num_files; ++k) {
        require(known.embedded[i]->files[k].name, "name of an embedded file");
        require(known.embedded[i]->files[k].data, "data of an embedded file");
      }
    }
    *runtime = new dsak_runtime(known);
  });
}

void dsak_close(dsak_runtime* runtime) { delete runtime; }

dsak_status dsak_find(dsak_runtime* runtime, const char* name, dsak_op** op, dsak_error* error) {
  return guarded(error, [&] {
    require(runtime, "runtime");
    require(name, "name");
    require(op, "op");
    *op = nullptr;
    *op = &runtime->find(name);
  });
}

dsak_status dsak_launch(dsak_op* op, const dsak_arg* args, size_t num_args, void* workspace, void* stream, dsak_error* error) {
  return guarded(error,
                 [&] { launch(*static_cast<dsak_op*>(require(op, "op")), arguments(args, num_args), workspace, stream); });
}

dsak_status dsak_workspace(dsak_op* op, const dsak_arg* args, size_t num_args, size_t* bytes, dsak_error* error) {
  return guarded(error, [&] {
    require(op, "op");
    require(bytes, "bytes");
    *bytes = workspace_bytes(*op, arguments(args, num_args));
  });
}

dsak_status dsak_infer(dsak_op* op, const dsak_arg* args, size_t num_args, dsak_output* outputs, size_t* num_outputs,
                       dsak_error* error) {
  return guarded(error, [&] {
    require(op, "op");
    require(num_outputs, "num_outputs");
    if (*num_outputs > 0) require(outputs, "outputs");
    infer(*op, arguments(args, num_args), outputs, num_outputs);
  });
}

dsak_status dsak_explain(dsak_op* op, const char* target, const dsak_arg* args, size_t num_args, char** text,
                         dsak_error* error) {
  return guarded(error, [&] {
    require(op, "op");
    require(text, "text");
    *text = nullptr;
    *text = copy_text(explain(*op, target, arguments(args, num_args)));
  });
}

dsak_status dsak_preload(dsak_runtime* runtime, dsak_op* op, int32_t device_type, int32_t device_id, dsak_error* error) {
  return guarded(error, [&] {
    require(runtime, "runtime");
    const DeviceKey key = key_of(device_type, device_id);
    if (op != nullptr) return preload(*op, key);
    preload_all(*runtime, key);
  });
}

dsak_status dsak_verify(const char* pack, dsak_error* error) {
  return guarded(error, [&] {
    const Pack p(static_cast<const char*>(require(pack, "pack")));
    for (const OpDecl& op : p.manifest().ops) Plan(p.manifest(), op, cat(p.directory(), "/manifest.json"));
    for (const ObjectDecl& o : p.manifest().objects) p.read(o);
  });
}

char* dsak_info(dsak_runtime* runtime) {
  char* text = nullptr;
  guarded(nullptr, [&] { text = copy_text(info(*static_cast<dsak_runtime*>(require(runtime, "runtime")))); });
  return text;
}

const char* dsak_signature(dsak_op* op) { return op == nullptr ? nullptr : op->any_plan().op->params_json.c_str(); }

void dsak_free(void* memory) { std::free(memory); }
