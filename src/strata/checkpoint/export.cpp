#include "strata/checkpoint/export.h"

#include <set>
#include <unordered_map>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/agreement.h"
#include "strata/hf/export_index.h"
#include "strata/hf/safetensors.h"
#include "strata/shard/loading.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

using Names = std::unordered_map<const nn::Parameter*, std::string>;

hf::TensorSpec spec_of(const nn::Parameter& parameter, const std::string& name) {
  return {name, shard::dtype_of(parameter.storage_type()), parameter.shape()};
}

// The files of an export under temporary names; publish() renames them once all are complete.
class ExportFiles {
 public:
  explicit ExportFiles(fs::path folder) : folder_(std::move(folder)) {}
  ~ExportFiles() {
    writers_.clear();
    std::error_code ignored;
    for (const std::string& file : files_) fs::remove(temporary(file), ignored);
  }

  void add(const std::string& file, std::vector<hf::TensorSpec> specs) {
    files_.push_back(file);
    for (const hf::TensorSpec& spec : specs) {
      file_of_[spec.name] = writers_.size();
    }
    writers_.push_back(std::make_unique<hf::SafetensorsWriter>(temporary(file), std::move(specs)));
  }

  void write(const std::string& name, const at::Tensor& flat) {
    const at::Tensor host = flat.contiguous().cpu();
    writers_[file_of_.at(name)]->write(
        name, {static_cast<const std::byte*>(host.data_ptr()), host.nbytes()});
  }

  void publish() {
    for (auto& writer : writers_) writer->finish();
    for (const std::string& file : files_) fs::rename(temporary(file), folder_ / file);
    fsync_path(folder_);
  }

 private:
  fs::path temporary(const std::string& file) const { return folder_ / (file + ".tmp"); }

  fs::path folder_;
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<hf::SafetensorsWriter>> writers_;
  std::unordered_map<std::string, size_t> file_of_;
};

// Gathers every segment that holds a named parameter; rank 0 hands its tensors to `write`.
void stream_segments(shard::UnitStore& store, const Names& names, const std::string& what,
                     const std::function<void(const std::string&, const at::Tensor&)>& write) {
  comm::Group& world = *store.mesh().world;
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      const auto& extents = segments[static_cast<size_t>(s)].extents;
      const bool wanted = std::any_of(extents.begin(), extents.end(), [&](const auto& extent) {
        return names.count(extent.parameter) > 0;
      });
      if (!wanted) continue;
      at::Tensor whole = store.gather_stored(u, s);
      comm::all_or_nothing(world, what, [&] {
        if (world.rank() != 0) return;
        for (const shard::Extent& extent : extents) {
          const auto name = names.find(extent.parameter);
          if (name == names.end()) continue;
          write(name->second, whole.narrow(0, extent.begin, extent.parameter->numel()));
        }
      });
      store.pool().give_back(std::move(whole));
    }
  }
}

bool is_shard_name(const std::string& name) {
  constexpr std::string_view kPattern = "model-00000-of-00000.safetensors";
  if (name.size() != kPattern.size()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool fits =
        kPattern[i] == '0' ? name[i] >= '0' && name[i] <= '9' : name[i] == kPattern[i];
    if (!fits) return false;
  }
  return true;
}

// Weights of an earlier export: a loader would take model.safetensors before newer shards.
void remove_stale_weights(const fs::path& folder, const hf::ShardPlan& plan) {
  std::set<std::string> written;
  for (const hf::Shard& shard : plan.shards) written.insert(shard.file);
  if (plan.is_indexed()) written.insert(hf::kModelIndexFile);
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_weights =
        name == hf::kModelWeightsFile || name == hf::kModelIndexFile || is_shard_name(name);
    if (is_weights && !written.contains(name)) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path);
}

// A saved adapter that silently holds zeros or another rank's part is a known failure of other
// tools: the file is opened again, with every rule of the format checked, and its tensors looked
// up.
void read_back(const fs::path& file, const std::vector<adapters::AdapterTensor>& tensors) {
  const hf::SafetensorsFile saved(file);
  for (const adapters::AdapterTensor& tensor : tensors) {
    const hf::TensorInfo* info = saved.find(tensor.name);
    if (info == nullptr || info->shape != tensor.parameter->shape()) {
      throw IoError(
          "{}: found no tensor \"{}\" of the right shape after saving, expected it; check "
          "the disk and save again",
          file.string(), tensor.name);
    }
  }
}

}  // namespace

void export_model(const fs::path& folder, shard::UnitStore& store, uint64_t max_shard_size,
                  const std::function<std::string(const nn::Parameter&)>& name_of) {
  comm::Group& world = *store.mesh().world;
  Names names;
  std::vector<hf::TensorBytes> sizes;
  std::unordered_map<std::string, hf::TensorSpec> specs;
  uint64_t num_parameters = 0;
  for (nn::Parameter* parameter : store.model().parameters()) {
    const std::string name = name_of(*parameter);
    if (name.empty()) continue;
    names[parameter] = name;
    specs[name] = spec_of(*parameter, name);
    const size_t element = hf::size_of(shard::dtype_of(parameter->storage_type()));
    sizes.push_back({name, static_cast<uint64_t>(parameter->numel()) * element});
    num_parameters += static_cast<uint64_t>(parameter->numel());
  }
  const hf::ShardPlan plan = hf::plan_shards(sizes, max_shard_size);
  std::optional<ExportFiles> files;
  comm::all_or_nothing(world, "saving the model", [&] {
    if (world.rank() != 0) return;
    require_writable_folder(folder);
    files.emplace(folder);
    for (const hf::Shard& shard : plan.shards) {
      std::vector<hf::TensorSpec> of_file;
      for (const std::string& name : shard.tensors) of_file.push_back(specs.at(name));
      files->add(shard.file, std::move(of_file));
    }
  });
  stream_segments(
      store, names, "saving the model",
      [&](const std::string& name, const at::Tensor& flat) { files->write(name, flat); });
  comm::all_or_nothing(world, "saving the model", [&] {
    if (world.rank() != 0) return;
    files->publish();
    if (plan.is_indexed()) {
      write_file_atomically(folder / hf::kModelIndexFile, plan.index_json(num_parameters));
    }
    remove_stale_weights(folder, plan);
  });
}

void export_adapter(const fs::path& folder, shard::UnitStore& store,
                    const adapters::LoraAdapter& adapter, const hf::AdapterConfig& config) {
  comm::Group& world = *store.mesh().world;
  Names names;
  std::vector<hf::TensorSpec> specs;
  for (const adapters::AdapterTensor& tensor : adapter.tensors()) {
    names[tensor.parameter] = tensor.name;
    specs.push_back(spec_of(*tensor.parameter, tensor.name));
  }
  std::optional<ExportFiles> files;
  comm::all_or_nothing(world, "saving the adapter", [&] {
    if (world.rank() != 0) return;
    require_writable_folder(folder);
    files.emplace(folder);
    files->add(hf::kAdapterWeightsFile, std::move(specs));
  });
  stream_segments(
      store, names, "saving the adapter",
      [&](const std::string& name, const at::Tensor& flat) { files->write(name, flat); });
  comm::all_or_nothing(world, "saving the adapter", [&] {
    if (world.rank() != 0) return;
    files->publish();
    read_back(folder / hf::kAdapterWeightsFile, adapter.tensors());
    write_file_atomically(folder / hf::kAdapterConfigFile, hf::adapter_config_json(config));
  });
}

}  // namespace strata::checkpoint
