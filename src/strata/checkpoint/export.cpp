#include "strata/checkpoint/export.h"

#include <algorithm>
#include <unordered_map>

#include "strata/base/file.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/comm/agreement.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/shard/loading.h"
#include "strata/shard/segments.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// A tied weight may have two.
using Names = std::unordered_map<const nn::Parameter*, std::vector<std::string>>;

// Elements that are rounded at once: no tensor of a model is there twice.
constexpr int64_t kRoundedAtOnce = int64_t{1} << 20;

hf::TensorSpec spec_of(const nn::Parameter& parameter, const std::string& name,
                       const ExportOptions& options) {
  return {name, shard::dtype_of(written_type(parameter, options.type)), parameter.shape()};
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

// In `type`; none: in its own.
void write_tensor(ExportFiles& files, const std::string& name, const at::Tensor& tensor,
                  std::optional<at::ScalarType> type) {
  const bool is_rounded = type && tensor.is_floating_point() && tensor.scalar_type() != *type;
  if (!is_rounded) return files.write(name, bytes_of(tensor.contiguous().cpu()));
  const at::Tensor flat = tensor.contiguous().view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kRoundedAtOnce) {
    const int64_t count = std::min(kRoundedAtOnce, flat.numel() - begin);
    files.append(name, bytes_of(flat.narrow(0, begin, count).to(*type).cpu()));
  }
}

// Gathers every segment that holds a named parameter; rank 0 writes its tensors.
void stream_segments(shard::UnitStore& store, const Names& names, comm::Group& world,
                     const std::string& what, std::optional<ExportFiles>& files,
                     const ExportOptions& options) {
  for (const shard::SegmentPlace& place : shard::segments_of(store)) {
    const std::vector<shard::Extent>& extents = place.layout->extents;
    const bool wanted = std::ranges::any_of(
        extents, [&](const auto& extent) { return names.contains(extent.parameter); });
    if (!wanted) continue;
    store.with_stored(place.unit, place.segment, [&](const at::Tensor& whole) {
      on_disk_of_rank_0(world, what, [&] {
        for (const shard::Extent& extent : extents) {
          const auto found = names.find(extent.parameter);
          if (found == names.end()) continue;
          for (const std::string& name : found->second) {
            write_tensor(*files, name, whole.narrow(0, extent.begin, extent.parameter->numel()),
                         written_type(*extent.parameter, options.type));
          }
        }
      });
    });
  }
}

comm::Group& group_of(shard::UnitStore& store, const ExportOptions& options) {
  return options.group != nullptr ? *options.group : *store.mesh().world;
}

}  // namespace

void on_disk_of_rank_0(comm::Group& world, const std::string& what,
                       const std::function<void()>& work) {
  comm::all_or_nothing(world, what, [&] {
    if (world.rank() != 0) return;
    try {
      work();
    } catch (const IoError& error) {
      throw ExportRefused(error.what());
    } catch (const fs::filesystem_error& error) {
      throw ExportRefused(fmt::format("{}: found {}, expected the folder to be there; look at it",
                                      error.path1().string(), error.code().message()));
    }
  });
}

at::ScalarType written_type(const nn::Parameter& parameter, std::optional<at::ScalarType> type) {
  const bool keeps_type = parameter.quantization() || parameter.keeps_type();
  return keeps_type ? parameter.storage_type() : type.value_or(parameter.storage_type());
}

void export_model(const fs::path& folder, shard::UnitStore& store, uint64_t max_shard_size,
                  const std::function<std::string(const nn::Parameter&)>& name_of,
                  ExportOptions options) {
  comm::Group& world = group_of(store, options);
  Names names;
  std::vector<hf::TensorBytes> sizes;
  std::unordered_map<std::string, hf::TensorSpec> specs;
  uint64_t num_parameters = 0;
  for (nn::Parameter* parameter : store.model().parameters()) {
    const std::string name = name_of(*parameter);
    if (name.empty()) continue;
    names[parameter] = {name};
    specs[name] = spec_of(*parameter, name, options);
    const size_t element = hf::size_of(specs[name].dtype);
    sizes.push_back({name, static_cast<uint64_t>(parameter->numel()) * element});
    if (!parameter->is_buffer()) num_parameters += static_cast<uint64_t>(parameter->numel());
  }
  const hf::ShardPlan plan = hf::plan_shards(sizes, max_shard_size);
  std::optional<ExportFiles> files;
  on_disk_of_rank_0(world, "saving the model", [&] {
    require_writable_folder(folder);
    files.emplace(folder, options.trained, *options.files);
    files->add(plan, specs);
    if (plan.is_indexed()) files->add_text(hf::kModelIndexFile, plan.index_json(num_parameters));
    for (auto& [name, content] : options.beside) files->add_text(name, std::move(content));
  });
  stream_segments(store, names, world, "saving the model", files, options);
  on_disk_of_rank_0(world, "saving the model", [&] { files->publish(); });
}

std::map<std::string, std::string> adapter_metadata(const std::string& base_fingerprint) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (!base_fingerprint.empty()) metadata[hf::kBaseFingerprintKey] = base_fingerprint;
  return metadata;
}

void export_adapter(const fs::path& folder, shard::UnitStore& store,
                    const adapters::LoraAdapter& adapter, const hf::AdapterConfig& config,
                    const std::string& base_fingerprint, ExportOptions options) {
  comm::Group& world = group_of(store, options);
  Names names;
  std::vector<hf::TensorSpec> specs;
  for (const adapters::AdapterTensor& tensor : adapter.tensors()) {
    names[tensor.parameter].push_back(tensor.name);
    specs.push_back(spec_of(*tensor.parameter, tensor.name, options));
  }
  const hf::DType made = shard::dtype_of(options.type.value_or(at::kFloat));
  for (const adapters::FixedTensor& fixed : adapter.fixed_tensors()) {
    specs.push_back({fixed.name, made, fixed.tensor->sizes().vec()});
  }
  const std::vector<LocalPiece> derived =
      projected_prefix(store, projection_weights(store, adapter));
  for (const LocalPiece& piece : derived) {
    specs.push_back({hf::kPromptKey, made, piece.shape});
  }
  std::optional<ExportFiles> files;
  on_disk_of_rank_0(world, "saving the adapter", [&] {
    require_writable_folder(folder);
    files.emplace(folder, options.trained, *options.files);
    files->add(hf::kAdapterWeightsFile, std::move(specs), adapter_metadata(base_fingerprint));
    for (auto& [name, content] : options.beside) files->add_text(name, std::move(content));
    files->add_text(hf::kAdapterConfigFile, hf::adapter_config_json(config));
  });
  stream_segments(store, names, world, "saving the adapter", files, options);
  on_disk_of_rank_0(world, "saving the adapter", [&] {
    for (const adapters::FixedTensor& fixed : adapter.fixed_tensors()) {
      write_tensor(*files, fixed.name, *fixed.tensor, options.type);
    }
    for (const LocalPiece& piece : derived)
      write_tensor(*files, hf::kPromptKey, piece.data, options.type);
    files->publish();
  });
}

}  // namespace strata::checkpoint
