#include "strata/checkpoint/convert/strata_export.h"

#include <span>
#include <string>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/block_sums.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/manifest.h"
#include "strata/checkpoint/small_files.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "rank-00000.safetensors";

// The tensors of a state that such a checkpoint stores, as flat elements, by their places.
struct StoredTensors {
  std::vector<size_t> places;
  std::vector<hf::TensorSpec> specs;

  uint64_t size_bytes() const {
    uint64_t bytes = 0;
    for (const hf::TensorSpec& spec : specs) {
      bytes += static_cast<uint64_t>(spec.shape[0]) * hf::size_of(spec.dtype);
    }
    return bytes;
  }
};

StoredTensors stored_tensors(const SavedState& state, bool with_optimizer,
                             const WeightReader& reader) {
  StoredTensors stored;
  for (size_t i = 0; i < state.tensors().size(); ++i) {
    const SavedTensor& tensor = state.tensors()[i];
    if (!with_optimizer && !tensor.is_parameter()) continue;
    const auto numel = static_cast<int64_t>(tensor.size_bytes() / hf::size_of(tensor.dtype));
    stored.places.push_back(i);
    stored.specs.push_back({manifest_key(tensor), reader.type_of(tensor), {numel}});
  }
  return stored;
}

// `bytes`: of the whole tensor, which is one piece.
TensorRecord record_of(const hf::TensorSpec& spec, const std::vector<int64_t>& shape,
                       std::span<const std::byte> bytes, uint64_t block_bytes) {
  TensorRecord record;
  record.shape = shape;
  record.dtype = std::string(hf::name_of(spec.dtype));
  if (spec.shape[0] == 0) return record;
  record.pieces = {{kFile, spec.name, 0, spec.shape[0], checksum(bytes.data(), bytes.size())}};
  if (bytes.size() <= block_bytes) return record;
  BlockSums blocks(block_bytes);
  blocks.update(bytes);
  record.pieces[0].block_bytes = block_bytes;
  record.pieces[0].block_checksums = blocks.take();
  return record;
}

SmallFiles files_beside(const SavedState& state, const ConvertOptions& options) {
  SmallFiles files = options.small_files;
  if (state.is_adapter() && !state.facts().adapter_config.is_null()) {
    files[hf::kAdapterConfigFile] = adapter_config_text(state);
  }
  if (!state.facts().second_names.empty()) {
    files[kSecondNames] = dump_python(state.facts().second_names);
  }
  return files;
}

}  // namespace

void write_strata_checkpoint(SavedState& state, const fs::path& out, const ConvertOptions& options,
                             WeightReader& reader) {
  Manifest manifest;
  manifest.world_size = 1;
  manifest.step = state.facts().step.value_or(0);
  manifest.num_updates = state.facts().num_updates.value_or(manifest.step);
  const StoredTensors stored = stored_tensors(state, options.with_optimizer, reader);
  const fs::path folder = folder_of(out, manifest.step);
  FileSystem& files = *options.files;
  if (const int error = files.make_folder(folder)) {
    throw IoError("{}: found {} when creating it, expected a writable folder; choose another",
                  folder.string(), errno_text(error));
  }
  const uint64_t block_bytes = BlockSizes().block_bytes(stored.size_bytes());
  hf::SafetensorsWriter writer(folder / kFile, stored.specs, {{"format", "strata"}}, files);
  for (size_t i = 0; i < stored.places.size(); ++i) {
    const hf::TensorSpec& spec = stored.specs[i];
    const auto bytes = reader.read(stored.places[i]);
    writer.write(spec.name, bytes);
    manifest.tensors[spec.name] =
        record_of(spec, state.tensors()[stored.places[i]].shape, bytes, block_bytes);
  }
  writer.finish();
  write_small_files(folder, files_beside(state, options), manifest, files);
  write_file_atomically(folder / "manifest.json", manifest_text(manifest), files);
  write_file_atomically(out / "latest", folder.filename().string() + "\n", files);
}

}  // namespace strata::checkpoint
