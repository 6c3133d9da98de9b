#include "strata/checkpoint/import.h"

#include <unordered_map>

#include "strata/hf/adapter_files.h"

namespace strata::checkpoint {

shard::Source base_source(const hf::ModelFolder& folder, const models::WeightSources& sources) {
  return shard::folder_source(folder, [&sources](const nn::Parameter& parameter) {
    const auto source = sources.find(parameter.name());
    return source == sources.end() ? std::string() : source->second;
  });
}

void load_adapter(const std::filesystem::path& folder, const adapters::LoraAdapter& adapter,
                  shard::UnitStore& store, bool rank_0_reads) {
  std::optional<hf::ModelFolder> file;
  std::unordered_map<const nn::Parameter*, std::string> names;
  const auto open = [&]() -> shard::Source {
    file.emplace(folder);
    std::vector<std::pair<std::string, std::vector<int64_t>>> found;
    for (const std::string& name : file->names()) found.emplace_back(name, file->find(name)->shape);
    adapter.check_tensors(found, (folder / hf::kAdapterWeightsFile).string());
    for (const auto& tensor : adapter.tensors()) names[tensor.parameter] = tensor.name;
    return shard::folder_source(*file, [&](const nn::Parameter& parameter) {
      const auto name = names.find(&parameter);
      return name == names.end() ? std::string() : name->second;
    });
  };
  if (rank_0_reads) {
    shard::send_homes(store, open);
  } else {
    shard::fill_homes(store, open());
  }
}

}  // namespace strata::checkpoint
