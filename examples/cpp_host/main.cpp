// A C++ host without Python: opens a pack, runs a Triton kernel (concat_cast_q) and the CUDA Q8 kernel (sparse_mla_prefill) on
// raw device pointers, and checks both against its own arithmetic.
//
//   cpp_host packs/sm90      the pack in this folder
//   cpp_host                 the pack in the program, where CMake was given DSA_KERNELS_PACKS
#include <dsa_kernels.h>
#ifdef EMBEDDED
#include <dsa_kernels_sm90.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "driver.h"
#include "numbers.h"

namespace {

constexpr int64_t T = 6, H = 64, LATENT = 512, ROPE = 64, D = LATENT + ROPE, S_KV = 700, TOPK = 200;
constexpr float SM_SCALE = 0.0625f;

void check(dsak_status status, const dsak_error& error) {
  if (status == DSAK_OK) return;
  std::fprintf(stderr, "dsa_kernels error %d: %s\n", static_cast<int>(status), error.message);
  std::exit(1);
}

// A row-major tensor on CUDA device 0.
struct Tensor {
  std::vector<int64_t> shape;
  dsak_tensor view{};

  Tensor(void* data, uint8_t code, uint8_t bits, std::vector<int64_t> sizes) : shape(std::move(sizes)) {
    view.data = data;
    view.device = {2, 0};
    view.dtype = {code, bits, 1};
    view.ndim = static_cast<int32_t>(shape.size());
    view.shape = shape.data();
  }
  Tensor(const Tensor&) = delete;

  dsak_arg arg() const {
    dsak_arg a{};
    a.kind = DSAK_ARG_TENSOR;
    a.value.tensor = &view;
    return a;
  }
};

dsak_arg none() { return dsak_arg{}; }

dsak_arg number(double f) {
  dsak_arg a{};
  a.kind = DSAK_ARG_FLOAT;
  a.value.f = f;
  return a;
}

constexpr uint8_t INT = 0, FLOAT = 2, BFLOAT = 4, E4M3FN = 10;

struct Errors {
  double out, lse;
};

// Float64 attention over the same FP8 numbers.
Errors compare(const std::vector<uint8_t>& q, const std::vector<uint8_t>& kv, const std::vector<int32_t>& indices,
               const std::vector<uint16_t>& out, const std::vector<float>& lse) {
  double difference = 0, norm = 0, lse_error = 0;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t h = 0; h < H; ++h) {
      std::vector<double> logit, value(LATENT, 0.0);
      std::vector<int64_t> row;
      for (int64_t c = 0; c < TOPK; ++c) {
        const int32_t index = indices[t * TOPK + c];
        if (index < 0 || index >= S_KV) continue;
        double dot = 0;
        for (int64_t d = 0; d < D; ++d)
          dot += static_cast<double>(float_from_e4m3(q[(t * H + h) * D + d])) * float_from_e4m3(kv[index * D + d]);
        logit.push_back(dot * SM_SCALE);
        row.push_back(index);
      }
      const double top = *std::max_element(logit.begin(), logit.end());
      double sum = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        const double p = std::exp(logit[i] - top);
        sum += p;
        for (int64_t d = 0; d < LATENT; ++d) value[d] += p * float_from_e4m3(kv[row[i] * D + d]);
      }
      for (int64_t d = 0; d < LATENT; ++d) {
        const double wanted = value[d] / sum, found = float_from_bf16(out[(t * H + h) * LATENT + d]);
        difference += (found - wanted) * (found - wanted);
        norm += wanted * wanted;
      }
      lse_error = std::fmax(lse_error, std::fabs(std::log(sum) + top - lse[t * H + h]));
      if (std::isnan(lse[t * H + h])) lse_error = INFINITY;
    }
  return {std::sqrt(difference / norm), lse_error};
}

}  // namespace

int main(int argc, char** argv) {
  dsak_error error{};
  error.struct_size = sizeof error;
  const char* packs[] = {argv[argc - 1]};
  dsak_options options{};
  options.struct_size = sizeof options;
  if (argc == 2) {
    options.packs = packs;
    options.num_packs = 1;
  } else {
#ifdef EMBEDDED
    static const dsak_embedded_pack* const embedded[] = {&dsa_kernels_sm90};
    options.embedded = embedded;
    options.num_embedded = 1;
#else
    std::fprintf(stderr, "usage: cpp_host PACK, where PACK is a folder with a manifest.json, such as packs/sm90\n");
    return 2;
#endif
  }
  dsak_runtime* runtime = nullptr;
  check(dsak_open(&options, &runtime, &error), error);
  dsak_op *concat = nullptr, *prefill = nullptr;
  check(dsak_find(runtime, "concat_cast_q", &concat, &error), error);
  check(dsak_find(runtime, "sparse_mla_prefill", &prefill, &error), error);

  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal(0.f, 0.25f);
  std::vector<uint16_t> nope(T * H * LATENT), rope(T * H * ROPE);
  for (auto& x : nope) x = bf16_from_float(normal(random));
  for (auto& x : rope) x = bf16_from_float(normal(random));
  std::vector<uint8_t> kv(S_KV * D);
  for (auto& x : kv) x = e4m3_from_float(normal(random));
  std::vector<int32_t> indices(T * TOPK);
  for (auto& x : indices) x = static_cast<int32_t>(random() % (S_KV + 60)) - 30;  // some of them out of range

  Driver driver;
  uint8_t* q_device = driver.allocate<uint8_t>(T * H * D);
  uint16_t* out_device = driver.allocate<uint16_t>(T * H * LATENT);
  float* lse_device = driver.allocate<float>(T * H);
  const Tensor q_nope(driver.upload(nope), BFLOAT, 16, {T, H, LATENT}), q_rope(driver.upload(rope), BFLOAT, 16, {T, H, ROPE});
  const Tensor q(q_device, E4M3FN, 8, {T, H, D}), rows(driver.upload(kv), E4M3FN, 8, {S_KV, D});
  const Tensor selected(driver.upload(indices), INT, 32, {T, TOPK});
  const Tensor out(out_device, BFLOAT, 16, {T, H, LATENT}), lse(lse_device, FLOAT, 32, {T, H});

  // The Triton kernel: concatenate and cast the queries. Parameters in declaration order: q_nope, q_rope, out.
  const dsak_arg concat_args[] = {q_nope.arg(), q_rope.arg(), q.arg()};
  check(dsak_launch(concat, concat_args, 3, nullptr, nullptr, &error), error);

  // The Q8 kernel: q, kv, indices, sm_scale, q_rope, topk_length, attn_sink, q_scale, kv_scale, precision, out, max_logits,
  // lse.
  const dsak_arg prefill_args[] = {q.arg(), rows.arg(), selected.arg(), number(SM_SCALE), none(), none(),   none(),
                                   none(),  none(),     none(),         out.arg(),        none(), lse.arg()};
  // A call of few tokens is cut into parts that need scratch memory.
  size_t scratch_bytes = 0;
  check(dsak_workspace(prefill, prefill_args, 13, &scratch_bytes, &error), error);
  void* scratch = scratch_bytes != 0 ? driver.allocate<uint8_t>(static_cast<int64_t>(scratch_bytes)) : nullptr;
  check(dsak_launch(prefill, prefill_args, 13, scratch, nullptr, &error), error);

  const auto q_found = driver.download(q_device, T * H * D);
  int64_t wrong = 0;
  for (int64_t i = 0; i < T * H; ++i)
    for (int64_t d = 0; d < D; ++d) {
      const uint16_t source = d < LATENT ? nope[i * LATENT + d] : rope[i * ROPE + d - LATENT];
      wrong += q_found[i * D + d] != e4m3_from_float(float_from_bf16(source));
    }
  const Errors errors =
      compare(q_found, kv, indices, driver.download(out_device, T * H * LATENT), driver.download(lse_device, T * H));
  const bool good = wrong == 0 && errors.out < 3e-2 && errors.lse < 1e-3;
  std::printf("concat_cast_q: %lld of %lld bytes differ\nsparse_mla_prefill: relative error %.2e, lse error %.1e\n%s\n",
              static_cast<long long>(wrong), static_cast<long long>(T * H * D), errors.out, errors.lse, good ? "ok" : "WRONG");

  // A call that breaks the contract is refused before anything is launched.
  dsak_arg bad[3] = {q.arg(), q_rope.arg(), q.arg()};
  if (dsak_launch(concat, bad, 3, nullptr, nullptr, &error) == DSAK_OK) return 1;
  std::printf("refused, as it should be: %s\n", error.message);
  dsak_close(runtime);
  return good ? 0 : 1;
}
