#include "strata/checkpoint/convert/torch_export.h"

#include <array>
#include <map>
#include <optional>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/convert/peft_names.h"
#include "strata/hf/formats/torch_file.h"
#include "strata/ops/quant/codebook.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// Opens `file` for one torch.save archive of the tensors in `places` and writes it.
void write_torch_file(const fs::path& file, const hf::PyValue& root,
                      const std::vector<hf::TorchTensorSpec>& specs, FileSystem& files,
                      const std::function<std::span<const std::byte>(size_t)>& read) {
  const int descriptor = files.create(file);
  if (descriptor < 0) {
    throw IoError("{}: found {} when creating it, expected a writable folder; choose another",
                  file.string(), errno_text(-descriptor));
  }
  const Descriptor owner(descriptor);
  hf::TorchFileWriter writer(descriptor, 0, file.string(), root, specs, files);
  for (size_t i = 0; i < specs.size(); ++i) writer.write(read(i));
  writer.finish();
}

std::span<const std::byte> bytes_of(const float& value) {
  return std::as_bytes(std::span(&value, 1));
}

// What an entry of the optimizer's state is written from: a tensor of the state, a table of values,
// or, with neither, the count of updates.
struct StateSource {
  std::optional<size_t> tensor;
  const std::array<float, 256>* table = nullptr;
};

// The state of one weight as the tensors `places` hold it. With 8-bit moments somewhere in the run
// (`in_8bit`) as bitsandbytes' optimizers save theirs: under one key, with the tables of values.
class WeightState {
 public:
  WeightState(bool in_8bit, std::vector<hf::TorchTensorSpec>& specs,
              std::vector<StateSource>& sources)
      : in_8bit_(in_8bit), specs_(specs), sources_(sources) {}

  hf::PyItems items(const SavedState& state, const std::vector<size_t>& places, int64_t updates) {
    hf::PyItems items;
    if (in_8bit_) {
      items.emplace_back("step", hf::PyValue{updates});
    } else {
      items.emplace_back("step", add({hf::DType::kF32, {}}, {}));
    }
    hf::PyItems quantized;
    for (const size_t i : places) {
      const SavedTensor& tensor = state.tensors()[i];
      const hf::PyValue value = add({tensor.dtype, tensor.shape}, {.tensor = i});
      if (!in_8bit_) {
        items.emplace_back(tensor.kind, value);
        continue;
      }
      quantized.emplace_back(name_of(tensor.kind), value);
      if (tensor.dtype != hf::DType::kU8) continue;
      const bool is_first = tensor.kind == "state1";
      quantized.emplace_back(
          is_first ? "qmap1" : "qmap2",
          add({hf::DType::kF32, {256}},
              {.tensor = {}, .table = &ops::quant::dynamic_map(/*is_signed=*/is_first)}));
    }
    if (in_8bit_) items.emplace_back(kQuantState, hf::PyValue{std::move(quantized)});
    return items;
  }

 private:
  static std::string name_of(const std::string& kind) {
    if (kind == "exp_avg") return "state1";
    return kind == "exp_avg_sq" ? "state2" : kind;
  }

  hf::PyValue add(hf::TorchTensorSpec spec, StateSource source) {
    specs_.push_back(std::move(spec));
    sources_.push_back(source);
    return {hf::PyTensor{specs_.size() - 1}};
  }

  bool in_8bit_;
  std::vector<hf::TorchTensorSpec>& specs_;
  std::vector<StateSource>& sources_;
};

}  // namespace

void write_torch_weights(const SavedState& state, const std::vector<NamedPlace>& weights,
                         const fs::path& file, WeightReader& reader, FileSystem& files) {
  hf::PyItems root;
  std::vector<hf::TorchTensorSpec> specs;
  for (const auto& [place, name] : weights) {
    const SavedTensor& tensor = state.tensors()[place];
    root.emplace_back(name, hf::PyValue{hf::PyTensor{specs.size()}});
    specs.push_back({reader.type_of(tensor), tensor.shape});
  }
  write_torch_file(file, {root}, specs, files,
                   [&](size_t i) { return reader.read(weights[i].place); });
}

void write_torch_optimizer(const SavedState& state, const std::vector<size_t>& of_optimizer,
                           const fs::path& file, WeightReader& reader, FileSystem& files) {
  std::map<std::string, std::vector<size_t>> by_weight;
  bool in_8bit = false;
  for (size_t i : of_optimizer) {
    const SavedTensor& tensor = state.tensors()[i];
    by_weight[tensor.weight].push_back(i);
    in_8bit |= tensor.kind == "state1" && tensor.dtype == hf::DType::kU8;
  }
  const int64_t updates = state.facts().num_updates.value_or(0);
  std::vector<hf::TorchTensorSpec> specs;
  std::vector<StateSource> sources;
  hf::PyItems states;
  for (const auto& [weight, tensors] : by_weight) {
    states.emplace_back(
        name_in_optimizer(state, weight),
        hf::PyValue{WeightState(in_8bit, specs, sources).items(state, tensors, updates)});
  }
  const hf::PyValue root{
      hf::PyItems{{"state", {std::move(states)}}, {"param_groups", param_groups(state)}}};
  const auto count = static_cast<float>(updates);
  write_torch_file(file, root, specs, files, [&](size_t i) -> std::span<const std::byte> {
    if (sources[i].table != nullptr) return std::as_bytes(std::span(*sources[i].table));
    return sources[i].tensor ? reader.read(*sources[i].tensor) : bytes_of(count);
  });
}

}  // namespace strata::checkpoint
