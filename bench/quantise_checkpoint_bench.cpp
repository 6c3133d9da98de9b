// Quantises a whole checkpoint of random bf16 weights on one thread, on its way into homes and into
// a folder of bitsandbytes' form, beside memcpy() of the same bytes out of the same file. Owns: a
// folder of its own below FOLDER. Prints a table for bench/results.
//
//   quantise_checkpoint_bench [FOLDER=/dev/shm] [LAYERS=8] [ROUNDS=7]
//
// The file lies in memory (a file system there, or the page cache): disks are not compared. A
// layer is that of a model of width 2048, 102 MB. All sides take turns; ratios are of medians.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "strata/base/file.h"
#include "strata/checkpoint/import.h"
#include "strata/checkpoint/quantized_export.h"
#include "strata/comm/single_group.h"
#include "strata/hf/formats/safetensors.h"
#include "strata/hf/model_folder.h"
#include "strata/models/registry.h"
#include "strata/shard/loading.h"
#include "strata/shard/quantized_loading.h"

namespace {

namespace fs = std::filesystem;
using namespace strata;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Json config_of(int layers) {
  return {{"model_type", "llama"},       {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 256},           {"hidden_size", 2048},
          {"intermediate_size", 5632},   {"num_hidden_layers", layers},
          {"num_attention_heads", 16},   {"num_key_value_heads", 16},
          {"rms_norm_eps", 1e-5},        {"dtype", "bfloat16"},
          {"tie_word_embeddings", false}};
}

void write_checkpoint(const fs::path& folder, int layers) {
  fs::create_directories(folder);
  write_file_atomically(folder / "config.json", dump_python(config_of(layers)));
  const auto model = models::create_model(config_of(layers), {.storage = at::kBFloat16});
  std::vector<hf::TensorSpec> specs;
  for (const nn::Parameter* parameter : model->parameters()) {
    specs.push_back({parameter->name(), hf::DType::kBF16, parameter->shape()});
  }
  hf::SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const nn::Parameter* parameter : model->parameters()) {
    const at::Tensor values = at::randn(parameter->shape()).mul_(0.02).to(at::kBFloat16);
    writer.write(parameter->name(),
                 {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
}

// All tensors one after the other into memory that is there already.
void copy_all(const fs::path& folder, std::vector<std::byte>& to) {
  const hf::ModelFolder files(folder);
  size_t at = 0;
  for (const std::string& name : files.names()) {
    const auto bytes = files.bytes(*files.find(name));
    std::memcpy(to.data() + at, bytes.data(), bytes.size());
    at += bytes.size();
  }
}

models::QuantizationOptions options_of(const ops::quant::Format& format) {
  models::QuantizationOptions options;
  options.quantization.format = format;
  return options;
}

// As a run does it: homes are allocated, filled and let go.
void load(const fs::path& folder, const ops::quant::Format& format) {
  const hf::ModelFolder files(folder);
  const auto model = models::create_model(files.config(), {.storage = at::kBFloat16});
  for (nn::Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
  models::quantize_linears(*model, options_of(format));
  const models::WeightSources sources = model->check_weights(files);
  comm::Mesh mesh{comm::make_single_group(), comm::make_single_group(), comm::make_single_group()};
  shard::UnitStore store(*model, mesh, {.compute_type = at::kBFloat16});
  shard::fill_homes(store, checkpoint::base_source(files, sources));
  shard::fill_quantized_homes(store, files, sources, at::kBFloat16);
}

void convert(const fs::path& folder, const fs::path& out, const ops::quant::Format& format) {
  const auto state = checkpoint::open_saved_state(folder);
  checkpoint::convert_quantized(*state, out, {.quantization = options_of(format)});
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const fs::path place = fs::path(argc > 1 ? argv[1] : "/dev/shm") / "strata-quantise-bench";
  const int layers = argc > 2 ? std::atoi(argv[2]) : 8;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  fs::remove_all(place);
  write_checkpoint(place / "plain", layers);
  const auto bytes = static_cast<double>(fs::file_size(place / "plain" / "model.safetensors"));
  std::vector<std::byte> target(static_cast<size_t>(bytes), std::byte{1});
  const ops::quant::Format formats[] = {{ops::quant::Kind::kNf4, 64, false},
                                        {ops::quant::Kind::kNf4, 64, true},
                                        {ops::quant::Kind::kFp4, 64, false},
                                        {ops::quant::Kind::kInt8, 64, false}};
  fmt::print(
      "| {:.0f} MB of bf16 | copy, GB/s | load, GB/s | of the copy | convert, GB/s | of the "
      "copy |\n|---|---|---|---|---|---|\n",
      bytes / 1e6);
  for (const ops::quant::Format& format : formats) {
    std::vector<double> copying, loading, converting;
    for (int round = 0; round <= rounds; ++round) {
      const double copy = seconds_of([&] { copy_all(place / "plain", target); });
      const double one_load = seconds_of([&] { load(place / "plain", format); });
      const double one_convert =
          seconds_of([&] { convert(place / "plain", place / "codes", format); });
      fs::remove_all(place / "codes");
      if (round == 0) continue;  // first touches of everything
      copying.push_back(copy);
      loading.push_back(one_load);
      converting.push_back(one_convert);
    }
    const double copy = median(copying);
    fmt::print("| {} | {:.1f} | {:.1f} | **{:.0f} %** | {:.1f} | **{:.0f} %** |\n",
               ops::quant::describe(format), bytes / copy / 1e9, bytes / median(loading) / 1e9,
               100 * copy / median(loading), bytes / median(converting) / 1e9,
               100 * copy / median(converting));
  }
  fs::remove_all(place);
}
