#include "strata/checkpoint/export_files.h"

#include <algorithm>
#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/manifest.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

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

// A branch that starts from random values and is all zero was never saved.
bool must_not_be_zero(const std::string& name) { return name.ends_with(".lora_A.weight"); }

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

ExportFiles::~ExportFiles() {
  writers_.clear();
  std::error_code ignored;
  for (const std::string& file : files_) fs::remove(temporary(file), ignored);
}

fs::path ExportFiles::temporary(const std::string& file) const { return folder_ / (file + ".tmp"); }

void ExportFiles::add(const std::string& file, std::vector<hf::TensorSpec> specs) {
  files_.push_back(file);
  for (const hf::TensorSpec& spec : specs) file_of_[spec.name] = writers_.size();
  writers_.push_back(std::make_unique<hf::SafetensorsWriter>(temporary(file), std::move(specs)));
}

void ExportFiles::add(const hf::ShardPlan& plan,
                      const std::unordered_map<std::string, hf::TensorSpec>& specs) {
  for (const hf::Shard& shard : plan.shards) {
    std::vector<hf::TensorSpec> of_file;
    for (const std::string& name : shard.tensors) of_file.push_back(specs.at(name));
    add(shard.file, std::move(of_file));
  }
}

void ExportFiles::write(const std::string& name, std::span<const std::byte> data) {
  writers_[file_of_.at(name)]->write(name, data);
  checksums_[name] = checksum(data.data(), data.size());
}

// A file that silently holds zeros or another rank's part is a known failure of other tools.
void ExportFiles::read_back(const std::string& file) const {
  const hf::SafetensorsFile saved(temporary(file));
  for (const hf::TensorInfo& info : saved.tensors()) {
    const auto bytes = saved.bytes(info);
    const auto written = checksums_.find(info.name);
    const bool is_same =
        written != checksums_.end() && written->second == checksum(bytes.data(), bytes.size());
    if (!is_same || (must_not_be_zero(info.name) && is_zero(bytes))) {
      throw IoError(
          "{}: found {} in \"{}\" after saving, expected what was written; check the disk "
          "and save again",
          (folder_ / file).string(), is_same ? "only zeros" : "other values", info.name);
    }
    forget_pages(bytes);
  }
}

void ExportFiles::publish() {
  for (auto& writer : writers_) writer->finish();
  for (const std::string& file : files_) read_back(file);
  for (const std::string& file : files_) fs::rename(temporary(file), folder_ / file);
  fsync_path(folder_);
}

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

}  // namespace strata::checkpoint
