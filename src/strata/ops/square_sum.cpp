// Sum of squares: checks and choice of the device. The kernels are in square_sum_cpu.cpp and
// square_sum_cuda.cu.
#include "strata/ops/square_sum.h"

#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "square_sum";

// All kernels first, then one wait for all their sums.
double sum_on_cuda(const std::vector<at::Tensor>& flats) {
  int64_t num_partials = 0;
  for (const at::Tensor& flat : flats) num_partials += cuda::square_sum_partials(flat.numel());
  const at::Tensor partials = at::empty({num_partials}, flats.front().options().dtype(at::kDouble));
  double* to = partials.mutable_data_ptr<double>();
  for (const at::Tensor& flat : flats) {
    cuda::square_sum(element_of(kOp, "flat", flat), flat.const_data_ptr(), flat.numel(), to,
                     cuda::current_stream(flat));
    to += cuda::square_sum_partials(flat.numel());
  }
  const at::Tensor on_host = partials.cpu();
  double sum = 0;
  for (int64_t i = 0; i < num_partials; ++i) sum += on_host.const_data_ptr<double>()[i];
  return sum;
}

}  // namespace

double square_sum(const at::Tensor& flat) {
  check_device_or_plan(kOp, flat);
  check_contiguous(kOp, "flat", flat);
  if (flat.is_meta()) return 0;
  if constexpr (kHasCuda) {
    if (flat.is_cuda()) return sum_on_cuda({flat});
  }
  return cpu::square_sum(element_of(kOp, "flat", flat), flat.const_data_ptr(), flat.numel());
}

double square_sum(const std::vector<at::Tensor>& flats) {
  if constexpr (kHasCuda) {
    if (!flats.empty() && flats.front().is_cuda()) {
      for (const at::Tensor& flat : flats) check_contiguous(kOp, "flat", flat);
      return sum_on_cuda(flats);
    }
  }
  double sum = 0;
  for (const at::Tensor& flat : flats) sum += square_sum(flat);
  return sum;
}

}  // namespace strata::ops
