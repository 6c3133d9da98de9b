#include "strata/checkpoint/import.h"

#include <cstring>
#include <optional>
#include <unordered_map>

#include <ATen/ATen.h>

#include "strata/adapters/lora_init.h"
#include "strata/base/error.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/finite_values.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/int_weight.h"
#include "strata/models/embedding_scale.h"
#include "strata/models/vocabulary.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"

namespace strata::checkpoint {
namespace {

void require_finite(const hf::ModelFolder& file, const std::string& name) {
  const hf::TensorInfo& info = *file.find(name);
  const at::ScalarType type = shard::scalar_type_of(info.dtype, name);
  if (is_finite(file.bytes(info), type)) return;
  throw FormatError(
      "{}: tensor \"{}\" holds NaN or infinity, expected finite numbers; train the adapter again "
      "or use an earlier checkpoint of it",
      file.file_of(info).path().string(), name);
}

void check_adapter_file(const hf::ModelFolder& file, const adapters::LoraAdapter& adapter) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> found;
  for (const std::string& name : file.names()) found.emplace_back(name, file.find(name)->shape);
  adapter.check_tensors(found, (file.path() / hf::kAdapterWeightsFile).string());
  for (const auto& tensor : adapter.tensors()) require_finite(file, tensor.name);
  for (const auto& fixed : adapter.fixed_tensors()) require_finite(file, fixed.name);
}

}  // namespace

at::Tensor read_plain(const hf::ModelFolder& folder, const std::string& name) {
  if (const auto ints = hf::find_int_weight(folder, name)) {
    const at::Tensor decoded = at::empty(ints->dims(), at::kFloat);
    shard::read_ints(folder, *ints, /*begin=*/0, decoded.view({-1}));
    shard::forget_ints(folder, *ints);
    return decoded;
  }
  const hf::TensorInfo& info = *folder.find(name);
  if (const auto fp8 = hf::find_fp8_weight(folder, name)) {
    const at::Tensor decoded = at::empty(info.shape, at::kFloat);
    shard::read_fp8(folder, *fp8, /*begin=*/0, decoded.view({-1}));
    return decoded;
  }
  const at::ScalarType type = shard::scalar_type_of(info.dtype, name);
  at::Tensor values = at::empty(info.shape, at::dtype(type));
  const std::span<const std::byte> bytes = folder.bytes(info);
  std::memcpy(values.mutable_data_ptr(), bytes.data(), bytes.size());
  return values.to(at::kFloat);
}

shard::Source base_source(const hf::ModelFolder& folder, const models::WeightSources& sources) {
  return shard::folder_source(folder, [&sources](const nn::Parameter& parameter) {
    const auto source = sources.find(parameter.name());
    return source == sources.end() ? std::string() : source->second;
  });
}

void initialize_from_base(const adapters::LoraAdapter& adapter, shard::UnitStore& store,
                          uint64_t seed, bool only_base, const PlainBase& plain) {
  const auto place = [&](nn::Parameter& parameter, const at::Tensor& value) {
    shard::place_tensor(store, parameter, value);
  };
  comm::Group& world = *store.mesh().world;
  adapters::BaseAccess base;
  base.rank = world.rank();
  // Layers are dealt to the ranks that can read what they start from.
  base.num_ranks = adapter.options().keeps_base && plain.is_on_rank_0_alone ? 1 : world.size();
  base.read_plain = plain.read;
  if (adapter.options().has_virtual_tokens()) {
    base.embedding = &store.model().embedding_weight();
    base.embedding_scale = models::embedding_scale(store.model());
  }
  // On the CPU wherever the run computes: what is drawn is there too, and what starts from the base
  // starts alike on every device.
  base.read = [&](const nn::Parameter& parameter) {
    return shard::read_tensor(store, parameter).cpu();
  };
  base.write = place;
  base.share = [&](at::Tensor& values, int root) {
    if (world.size() > 1) world.broadcast(values, root)->wait();
  };
  adapters::initialize_from_base(adapter, seed, place, base, only_base);
}

namespace {

// PEFT saves the weight of a targeted output layer as it lies there: codes have no rows to take.
// Codes of 4 bits fill one column, whatever type they are stored as.
bool holds_rows(const hf::TensorInfo& tensor) {
  return at::isFloatingType(memory_type_of(tensor.dtype)) && tensor.shape.size() == 2 &&
         tensor.shape[1] > 1;
}

}  // namespace

int64_t stored_vocabulary_rows(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / hf::kAdapterWeightsFile)) return 0;
  const hf::ModelFolder file(folder);
  // PEFT's list of the names that embeddings and output layers have, and those of transformers.
  constexpr std::string_view kModules[] = {"embed_tokens", "lm_head",         "wte",
                                           "shared",       "word_embeddings", "embed_in",
                                           "embed_out",    "embeddings"};
  for (const std::string& name : file.names()) {
    for (const std::string_view module : kModules) {
      for (const char* end :
           {".weight", ".base_layer.weight", ".token_adapter.base_layer.weight"}) {
        if (!name.ends_with(fmt::format(".{}{}", module, end))) continue;
        if (holds_rows(*file.find(name))) return file.find(name)->shape[0];
      }
    }
  }
  return 0;
}

void expect_stored_vocabulary(const std::filesystem::path& folder, models::Model& model,
                              adapters::LoraAdapter& adapter) {
  const hf::ModelFolder file(folder);
  adapter.store_vocabulary(model, [&](const std::string& name) {
    const hf::TensorInfo* tensor = file.find(name);
    return tensor != nullptr && (!name.ends_with(".weight") || holds_rows(*tensor));
  });
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(model)) {
    const auto& tensors = adapter.tensors();
    const bool is_stored = std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return tensor.parameter == weight.parameter;
    });
    if (is_stored || weight.parameter->num_new_rows() <= 0) continue;
    throw FormatError(
        "{}: found rows for {} tokens but none of \"{}\", expected embedding and output layer; "
        "save the adapter with save_embedding_layers=True",
        (folder / hf::kAdapterWeightsFile).string(), model.vocab_size(), weight.name);
  }
}

void load_adapter(const std::filesystem::path& folder, const adapters::LoraAdapter& adapter,
                  shard::UnitStore& store, bool rank_0_reads) {
  std::optional<hf::ModelFolder> file;
  std::unordered_map<const nn::Parameter*, std::string> names;
  const auto open = [&]() -> shard::Source {
    file.emplace(folder);
    check_adapter_file(*file, adapter);
    for (const auto& tensor : adapter.tensors()) names[tensor.parameter] = tensor.name;
    return shard::folder_source(*file, [&](const nn::Parameter& parameter) {
      const auto name = names.find(&parameter);
      return name == names.end() ? std::string() : name->second;
    });
  };
  if (rank_0_reads) {
    shard::send_homes(store, shard::HomeKind::kValues, open);
  } else {
    shard::fill_homes(store, open());
  }
  for (const auto& fixed : adapter.fixed_tensors()) {
    if (file) fixed.tensor->copy_(read_plain(*file, fixed.name));
    if (!rank_0_reads) continue;
    at::Tensor values = fixed.tensor->cpu();
    store.mesh().world->broadcast(values, 0)->wait();
    fixed.tensor->copy_(values);
  }
}

AdapterValues read_adapter(const std::filesystem::path& folder,
                           const adapters::LoraAdapter& adapter) {
  const hf::ModelFolder file(folder);
  check_adapter_file(file, adapter);
  AdapterValues values;
  for (const auto& tensor : adapter.tensors()) {
    values.emplace_back(tensor.parameter, read_plain(file, tensor.name));
  }
  for (const auto& fixed : adapter.fixed_tensors()) {
    fixed.tensor->copy_(read_plain(file, fixed.name));
  }
  return values;
}

}  // namespace strata::checkpoint
