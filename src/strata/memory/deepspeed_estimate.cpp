#include "strata/memory/deepspeed_estimate.h"

#include <algorithm>

#include <fmt/format.h>

namespace strata::memory {
namespace {

// DeepSpeed's margin for buffers on the host.
constexpr double kBufferFactor = 1.5;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
// 16-bit gradient, 32-bit gradient, master and two moments.
constexpr double kStateBytes = 2 + 4 + 4 + 8;

int num_gpus(const DeepSpeedCase& c) { return c.gpus_per_node * c.nodes; }

}  // namespace

DeepSpeedNeeds estimate_zero2(const DeepSpeedCase& c, bool offload_optimizer) {
  const double p = static_cast<double>(c.num_parameters);
  const int n = num_gpus(c);
  if (offload_optimizer) return {p * std::max(4 * n, 16) * kBufferFactor, 2 * p};
  return {4 * p * c.gpus_per_node * kBufferFactor, 2 * p + kStateBytes * p / n};
}

DeepSpeedNeeds estimate_zero3(const DeepSpeedCase& c, bool offload_optimizer,
                              bool offload_parameters, bool zero_init) {
  const double p = static_cast<double>(c.num_parameters);
  const double largest = 4 * static_cast<double>(c.largest_layer);
  const double of_node = 1.0 / c.nodes;
  const double whole = 4.0 * c.gpus_per_node;  // every process builds the model in fp32
  if (!offload_optimizer && !offload_parameters) {
    const double cpu = zero_init ? largest * c.gpus_per_node : p * whole;
    return {cpu * kBufferFactor, largest + kStateBytes * p / num_gpus(c)};
  }
  const double host = offload_parameters ? kStateBytes : kStateBytes - 2;
  const double cpu = zero_init ? p * host * of_node : p * std::max(whole, host * of_node);
  const double gpu = offload_parameters ? largest : largest + 2 * p / num_gpus(c);
  return {cpu * kBufferFactor, gpu};
}

std::string deepspeed_table(const DeepSpeedCase& c) {
  std::string text = fmt::format(
      "DeepSpeed's estimates of model states for {} node{} of {} GPU{} ({:.0f}M parameters, "
      "largest "
      "layer {:.0f}M), GiB\n  {:>9} {:>9}  options\n",
      c.nodes, c.nodes == 1 ? "" : "s", c.gpus_per_node, c.gpus_per_node == 1 ? "" : "s",
      static_cast<double>(c.num_parameters) / 1e6, static_cast<double>(c.largest_layer) / 1e6,
      "per CPU", "per GPU");
  const auto row = [&](const DeepSpeedNeeds& needs, const std::string& options) {
    text += fmt::format("  {:>9.2f} {:>9.2f}  {}\n", needs.cpu_bytes / kGiB, needs.gpu_bytes / kGiB,
                        options);
  };
  for (bool offload : {true, false}) {
    row(estimate_zero2(c, offload),
        fmt::format("ZeRO-2 offload_optimizer={}", offload ? "cpu" : "none"));
  }
  for (const auto& [optimizer, parameters] :
       {std::pair{true, true}, std::pair{true, false}, std::pair{false, false}}) {
    for (int zero_init : {1, 0}) {
      row(estimate_zero3(c, optimizer, parameters, zero_init == 1),
          fmt::format("ZeRO-3 offload_param={} offload_optimizer={} zero_init={}",
                      parameters ? "cpu" : "none", optimizer ? "cpu" : "none", zero_init));
    }
  }
  return text;
}

}  // namespace strata::memory
