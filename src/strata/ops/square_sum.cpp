// Sum of squares: checks and choice of the device. The kernels are in square_sum_cpu.cpp and
// square_sum_cuda.cu.
#include "strata/ops/square_sum.h"

#include <ATen/ATen.h>

#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "square_sum";

// Elements that lie one after the other in one storage.
struct Run {
  const at::Tensor* first;
  int64_t numel;
};

bool continues(const Run& run, const at::Tensor& flat) {
  return flat.is_alias_of(*run.first) && flat.scalar_type() == run.first->scalar_type() &&
         flat.storage_offset() == run.first->storage_offset() + run.numel;
}

// A launch is a few microseconds, and a branch of LoRA has tensors that take less. Neighbours in
// memory by chance alone stay apart: the order of summation must not depend on the allocator.
std::vector<Run> runs_of(const std::vector<at::Tensor>& flats) {
  std::vector<Run> runs;
  for (const at::Tensor& flat : flats) {
    if (flat.numel() == 0) continue;  // has no address
    if (!runs.empty() && continues(runs.back(), flat)) {
      runs.back().numel += flat.numel();
    } else {
      runs.push_back({&flat, flat.numel()});
    }
  }
  return runs;
}

// All kernels first, then one wait for all their sums.
double sum_on_cuda(const std::vector<at::Tensor>& flats) {
  const std::vector<Run> runs = runs_of(flats);
  int64_t num_partials = 0;
  for (const Run& run : runs) num_partials += cuda::square_sum_partials(run.numel);
  const at::Tensor partials = at::empty({num_partials}, flats.front().options().dtype(at::kDouble));
  double* to = partials.mutable_data_ptr<double>();
  for (const Run& run : runs) {
    cuda::square_sum(element_of(kOp, "flat", *run.first), run.first->const_data_ptr(), run.numel,
                     to, cuda::current_stream(*run.first));
    to += cuda::square_sum_partials(run.numel);
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
