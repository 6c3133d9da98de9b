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

// A matrix that trained and is all zero was never saved. One row may well be zero in a model.
bool must_not_be_zero(const hf::TensorSpec& spec) {
  const bool is_matrix = spec.shape.size() >= 2 && spec.shape[0] > 1 && spec.shape[1] > 1;
  return is_matrix && spec.name.find(".lora_B.") == std::string::npos;
}

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

void ExportFiles::add(const std::string& file, std::vector<hf::TensorSpec> specs,
                      const std::map<std::string, std::string>& metadata) {
  files_.push_back(file);
  specs_.push_back(specs);
  for (const hf::TensorSpec& spec : specs) file_of_[spec.name] = writers_.size();
  writers_.push_back(
      std::make_unique<hf::SafetensorsWriter>(temporary(file), std::move(specs), metadata));
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
void ExportFiles::read_back(size_t file) const {
  const hf::SafetensorsFile saved(temporary(files_[file]));
  if (saved.tensors().size() != specs_[file].size()) {
    throw IoError("{}: found {} tensors after saving, expected {}; check the disk and save again",
                  (folder_ / files_[file]).string(), saved.tensors().size(), specs_[file].size());
  }
  for (const hf::TensorSpec& spec : specs_[file]) read_back(saved, spec);
}

void ExportFiles::read_back(const hf::SafetensorsFile& saved, const hf::TensorSpec& spec) const {
  const char* problem = nullptr;
  const hf::TensorInfo* info = saved.find(spec.name);
  if (info == nullptr || info->shape != spec.shape || info->dtype != spec.dtype) {
    problem = "none of its shape and type";
  } else {
    const auto bytes = saved.bytes(*info);
    const auto written = checksums_.find(spec.name);
    if (written == checksums_.end() || written->second != checksum(bytes.data(), bytes.size())) {
      problem = "other values";
    } else if (of_training_ && must_not_be_zero(spec) && is_zero(bytes)) {
      problem = "only zeros";
    }
    forget_pages(bytes);
  }
  if (problem == nullptr) return;
  throw IoError(
      "{}: found {} in \"{}\" after saving, expected what was trained; the last checkpoint is as "
      "it "
      "was: check the disk and save again from there",
      saved.path().string(), problem, spec.name);
}

void ExportFiles::publish() {
  for (auto& writer : writers_) writer->finish();
  for (size_t file = 0; file < files_.size(); ++file) read_back(file);
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
