/* dsa_kernels.h - the C contract of the runtime: find, verify and launch kernels that were compiled ahead of time.
 *
 *   dsak_runtime*  packs and devices; open one per process (or several, they are independent).
 *   dsak_op*       an operation such as "sparse_mla_prefill"; owned by its runtime, valid until the runtime is closed.
 *
 * Rules that hold for every function
 *   - Nothing here throws, exits, prints, spawns a process, touches the network or writes a file.
 *   - A function that can fail returns a dsak_status and, where `error` is not NULL, fills it: what was found, what was wanted,
 *     what to do. On DSAK_OK the error is left as it was.
 *   - All functions may be called from any thread at any time, except dsak_close, which must be the last call.
 *   - Strings returned as `const char*` live as long as the runtime; those returned as `char*` are freed with dsak_free.
 *   - No driver library is opened before the first call that needs a device: dsak_launch, dsak_workspace, dsak_preload,
 *     dsak_explain without a target, and dsak_infer where several packs of the tensors' vendor have the op. A process may
 *     fork after dsak_open.
 *   - The thread's current CUDA context or HIP device is the same after a call as before. Kernels run in the primary context.
 *   - Structs that may grow start with `struct_size`, set by the caller to sizeof of the struct it was compiled with.
 */
#ifndef DSA_KERNELS_H
#define DSA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define DSAK_API
#else
#define DSAK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DSAK_ABI_VERSION 1

typedef struct dsak_runtime dsak_runtime;
typedef struct dsak_op dsak_op;

typedef enum dsak_status {
  DSAK_OK = 0,
  DSAK_ERR_ARGUMENT = 1,       /* a call that breaks the op's contract: dtype, rank, size, stride, alignment, missing, rule */
  DSAK_ERR_NO_OP = 2,          /* no pack has an op of that name */
  DSAK_ERR_NO_PACK = 3,        /* no pack for the device's architecture */
  DSAK_ERR_NO_CANDIDATE = 4,   /* the pack has the op but nothing that serves this call; the message is the trace */
  DSAK_ERR_DEVICE = 5,         /* tensors on the CPU, on two devices, or on a device that is not there */
  DSAK_ERR_PACK_MISSING = 6,   /* a manifest or object that is not there */
  DSAK_ERR_PACK_TRUNCATED = 7, /* an object of the wrong size */
  DSAK_ERR_PACK_DIGEST = 8,    /* an object whose sha256 is not the manifest's */
  DSAK_ERR_PACK_SCHEMA = 9,    /* a manifest that does not parse, breaks its schema or has a newer major version */
  DSAK_ERR_PACK_ARCH = 10,     /* an object for another architecture than its manifest says */
  DSAK_ERR_DRIVER_OLD = 11,    /* the driver is older than the pack's min_driver */
  DSAK_ERR_DRIVER = 12,        /* no driver library, or a driver call that failed; the message names the call */
  DSAK_ERR_INTERNAL = 13
} dsak_status;

typedef struct dsak_error {
  size_t struct_size;
  dsak_status code;
  char message[4096]; /* UTF-8, terminated; cut at the end when longer */
} dsak_error;

/* Memory layout of DLPack's DLTensor (version 1), so that a DLTensor* may be passed as dsak_tensor*. */
typedef struct dsak_tensor {
  void* data;
  struct {
    int32_t type; /* DLPack device type: 1 CPU, 2 CUDA, 10 ROCm */
    int32_t id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code; /* DLPack type code: 0 int, 1 uint, 2 float, 4 bfloat, 10 float8_e4m3fn, 11 float8_e4m3fnuz */
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL means contiguous */
  uint64_t byte_offset;
} dsak_tensor;

/* One argument of an op, in the order of its declaration. */
typedef enum dsak_arg_kind {
  DSAK_ARG_NONE = 0,   /* an optional tensor that is absent, an output that is not wanted, a scalar left at its default */
  DSAK_ARG_TENSOR = 1, /* value.tensor */
  DSAK_ARG_INT = 2,    /* value.i */
  DSAK_ARG_FLOAT = 3,  /* value.f */
  DSAK_ARG_CHOICE = 4  /* value.choice, a word such as "exact" */
} dsak_arg_kind;

typedef struct dsak_arg {
  int32_t kind;
  union {
    const dsak_tensor* tensor;
    int64_t i;
    double f;
    const char* choice;
  } value;
} dsak_arg;

/* A pack that is part of the program: dsa_kernels_embed (CMake) makes these. The memory must outlive the runtime. */
typedef struct dsak_file {
  const char* name; /* path inside the pack */
  const void* data;
  size_t size;
} dsak_file;

typedef struct dsak_embedded_pack {
  const char* name;
  const dsak_file* files;
  size_t num_files;
} dsak_embedded_pack;

typedef struct dsak_options {
  size_t struct_size;
  const char* const* packs; /* directories that hold a manifest.json */
  size_t num_packs;
  const char* cuda_library; /* NULL: libcuda.so.1 (or $DSA_KERNELS_CUDA_LIBRARY) */
  const char* hip_library;  /* NULL: libamdhip64.so (or $DSA_KERNELS_HIP_LIBRARY) */
  const dsak_embedded_pack* const* embedded;
  size_t num_embedded;
} dsak_options;

/* Shape and element type of an output, as dsak_infer reports them. */
typedef struct dsak_output {
  size_t struct_size; /* set in every element of an array; elements lie that far apart */
  int32_t param;      /* index into the op's parameters */
  int32_t ndim;
  int64_t shape[8];
  uint8_t dtype_code, dtype_bits;
} dsak_output;

/* Version of the library and of the ABI it was built with. */
DSAK_API const char* dsak_version(void);
DSAK_API uint32_t dsak_abi_version(void);

/* Read the manifests of `options->packs` and `options->embedded`. Objects are not read yet. A pack that cannot be used fails
 * the call, and so do two packs that have the same op for the same target. Packs of several architectures and vendors may be
 * open at once. */
DSAK_API dsak_status dsak_open(const dsak_options* options, dsak_runtime** runtime, dsak_error* error);

/* Unload every module and free everything. Work in flight must have finished. NULL is allowed. */
DSAK_API void dsak_close(dsak_runtime* runtime);

/* The op called `name`. DSAK_ERR_NO_OP lists the names that exist. */
DSAK_API dsak_status dsak_find(dsak_runtime* runtime, const char* name, dsak_op** op, dsak_error* error);

/* Launch `op` on `stream` (a CUstream or hipStream_t, NULL for the default stream) of the device that holds its tensors.
 * `args` are the op's parameters in declaration order, outputs included; `num_args` may be smaller when only defaults follow.
 * `workspace` is device memory of at least dsak_workspace bytes, 256-byte aligned, or NULL when that is 0.
 * Asynchronous; safe under stream capture once the op was preloaded or launched. Nothing is launched unless everything was
 * checked. */
DSAK_API dsak_status dsak_launch(dsak_op* op, const dsak_arg* args, size_t num_args, void* workspace, void* stream,
                                 dsak_error* error);

/* Bytes of scratch memory that dsak_launch wants for this call. */
DSAK_API dsak_status dsak_workspace(dsak_op* op, const dsak_arg* args, size_t num_args, size_t* bytes, dsak_error* error);

/* Shapes and element types of every output of this call, required and optional ones in declaration order; outputs in `args`
 * and all addresses are ignored, and `num_args` may stop before them. Of an output that may have several element types the
 * first is reported. `*num_outputs` holds the capacity on entry and the count on return; too little room is an error. */
DSAK_API dsak_status dsak_infer(dsak_op* op, const dsak_arg* args, size_t num_args, dsak_output* outputs, size_t* num_outputs,
                                dsak_error* error);

/* Text: every candidate for this call with accept or reject and the reason, the kernel chosen, grid and resources.
 * Works without a driver when `target` (an architecture name such as "sm90") is given: tensors may then lie anywhere, and
 * sm_count reads as 0. NULL asks the tensors' device. The text is freed with dsak_free. */
DSAK_API dsak_status dsak_explain(dsak_op* op, const char* target, const dsak_arg* args, size_t num_args, char** text,
                                  dsak_error* error);

/* Verify and load the objects of `op` (NULL: of every op) for a device, so that the first launch only launches.
 * `device_type` is a DLPack device type (2 or 10). */
DSAK_API dsak_status dsak_preload(dsak_runtime* runtime, dsak_op* op, int32_t device_type, int32_t device_id,
                                  dsak_error* error);

/* Check a pack directory offline: manifest, presence, size, sha256 and architecture of every object. */
DSAK_API dsak_status dsak_verify(const char* pack, dsak_error* error);

/* JSON: packs with their targets, toolchains and digests; ops with their parameters; devices seen without starting a driver. */
DSAK_API char* dsak_info(dsak_runtime* runtime);

/* JSON array of the op's parameters as the manifest of the first pack that has the op declares them (docs included). */
DSAK_API const char* dsak_signature(dsak_op* op);

DSAK_API void dsak_free(void* memory);

#ifdef __cplusplus
}
#endif
#endif
