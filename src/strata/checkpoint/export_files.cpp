#include "strata/checkpoint/export_files.h"

#include <algorithm>
#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/page_advice.h"
#include "strata/base/xxh3.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/reward_head.h"
#include "strata/text/vocabulary_files.h"

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

bool is_model_file(const std::string& name) {
  return name == hf::kModelWeightsFile || name == hf::kModelIndexFile || is_shard_name(name);
}

// What readers take from beside the weights, whatever else tells them; the names under which
// vocabularies lie are the tokenizer's business.
constexpr const char* kCompanions[] = {
    "generation_config.json",  models::kLabelsFile, "chat_template.jinja", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json",          "merges.txt"};
constexpr const char* kTemplates = "additional_chat_templates";

// What PEFT starts with zeros, so that an adapter begins as its base: B of a branch, A of an
// embedding's, prefixes where they are asked to.
bool starts_at_zero(const std::string& name) {
  return name.find(".lora_B.") != std::string::npos ||
         name.find(".lora_embedding_A") != std::string::npos || name == hf::kPromptKey;
}

struct ReadBack {
  std::string checksum;
  bool is_zero = true;
};

// Of a mapped tensor. Piece by piece: a large embedding as a whole would count as memory of the
// process, which no plan has room for.
ReadBack read_in_pieces(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{8} << 20;
  Xxh3 hash;
  ReadBack found;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    bytes = bytes.subspan(piece.size());
    map_pages(piece);
    hash.update(piece);
    found.is_zero = found.is_zero && is_zero(piece);
    forget_pages(piece);
  }
  found.checksum = hash.text_64();
  return found;
}

}  // namespace

std::string matrices_like(const std::string& name) {
  return fmt::format("\"{}\" and in all other matrices that start as zeros", name);
}

void throw_zeros(const fs::path& file, const std::string& where) {
  throw FormatError(
      "{}: found only zeros in {}, expected what was trained; the last checkpoint is as it was: "
      "look at what trains and at learning_rate; if both are right, report this",
      file.string(), where);
}

bool ZeroCheck::refuses(const std::string& name, const std::vector<int64_t>& shape, bool is_zero) {
  // One row may well be zero in a model.
  const bool is_matrix = shape.size() >= 2 && shape[0] > 1 && shape[1] > 1;
  if (trained_ == Trained::kUnknown || !is_matrix) return false;
  if (!starts_at_zero(name)) return is_zero;
  if (trained_ == Trained::kNotYet) return false;
  has_trained_ |= !is_zero;
  untrained_ = name;
  return false;
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

ExportFiles::ExportFiles(fs::path folder, Trained trained, FileSystem& files)
    : folder_(std::move(folder)), trained_(trained), file_system_(files), update_(folder_, files) {}

ExportFiles::~ExportFiles() = default;

void ExportFiles::add(const std::string& file, std::vector<hf::TensorSpec> specs,
                      const std::map<std::string, std::string>& metadata) {
  for (const hf::TensorSpec& spec : specs) file_of_[spec.name] = files_.size();
  auto writer =
      std::make_unique<hf::SafetensorsWriter>(update_.path() / file, specs, metadata, file_system_);
  files_.push_back({file, std::move(specs), metadata, std::move(writer)});
}

void ExportFiles::add(const hf::ShardPlan& plan,
                      const std::unordered_map<std::string, hf::TensorSpec>& specs,
                      const std::map<std::string, std::string>& metadata) {
  for (const hf::Shard& shard : plan.shards) {
    std::vector<hf::TensorSpec> of_file;
    for (const std::string& name : shard.tensors) of_file.push_back(specs.at(name));
    add(shard.file, std::move(of_file), metadata);
  }
}

void ExportFiles::add_text(const std::string& file, std::string content) {
  texts_[file] = std::move(content);
}

void ExportFiles::write(const std::string& name, std::span<const std::byte> data) {
  written_.erase(name);
  append(name, data);
}

void ExportFiles::append(const std::string& name, std::span<const std::byte> data) {
  Written& written = written_[name];
  files_[file_of_.at(name)].writer->write(name, data, written.size_bytes);
  written.size_bytes += data.size();
  written.checksum.update(data);
}

// A file that silently holds zeros or another rank's part is a known failure of other tools.
void ExportFiles::read_back(const File& file, ZeroCheck& zeros) const {
  const hf::SafetensorsFile saved(update_.path() / file.name);
  if (saved.tensors().size() != file.specs.size()) {
    throw IoError("{}: found {} tensors after saving, expected {}; check the disk and save again",
                  (folder_ / file.name).string(), saved.tensors().size(), file.specs.size());
  }
  if (saved.metadata() != file.metadata) {
    throw IoError(
        "{}: found other metadata after saving, expected what was written (the base's fingerprint "
        "among it); check the disk and save again",
        (folder_ / file.name).string());
  }
  for (const hf::TensorSpec& spec : file.specs) read_back(saved, spec, zeros);
}

void ExportFiles::read_back(const hf::SafetensorsFile& saved, const hf::TensorSpec& spec,
                            ZeroCheck& zeros) const {
  const char* problem = nullptr;
  const hf::TensorInfo* info = saved.find(spec.name);
  if (info == nullptr || info->shape != spec.shape || info->dtype != spec.dtype) {
    problem = "none of its shape and type";
  } else {
    const ReadBack found = read_in_pieces(saved.bytes(*info));
    const auto written = written_.find(spec.name);
    if (written == written_.end() || written->second.checksum.text_64() != found.checksum) {
      problem = "other values";
    } else if (zeros.refuses(spec.name, spec.shape, found.is_zero)) {
      throw_zeros(folder_ / saved.path().filename(), fmt::format("\"{}\"", spec.name));
    }
  }
  if (problem == nullptr) return;
  throw IoError(
      "{}: found {} in \"{}\" after saving, expected what was trained; the last checkpoint is as "
      "it "
      "was: check the disk and save again from there",
      (folder_ / saved.path().filename()).string(), problem, spec.name);
}

std::string ExportFiles::entry() const {
  for (const char* name : {"config.json", hf::kAdapterConfigFile, hf::kModelIndexFile}) {
    if (texts_.contains(name)) return name;
  }
  return "";
}

// A loader would take model.safetensors before newer shards.
std::vector<std::string> ExportFiles::stale_weights() const {
  std::vector<std::string> stale;
  const auto is_written = [&](const std::string& name) {
    return texts_.contains(name) ||
           std::ranges::any_of(files_, [&](const File& file) { return file.name == name; });
  };
  const bool is_model =
      std::ranges::any_of(files_, [](const File& file) { return is_model_file(file.name); });
  if (!is_model) return stale;
  for (const auto& found : fs::directory_iterator(folder_)) {
    const std::string name = found.path().filename().string();
    if (is_model_file(name) && !is_written(name)) stale.push_back(name);
  }
  return stale;
}

// A tokenizer would take the template of an earlier run before that in its own settings.
std::vector<std::string> ExportFiles::stale_companions() const {
  std::vector<std::string> stale;
  for (const char* of_run : {"settings.json", "trainer_state.json"}) {
    if (!texts_.contains(of_run) || !fs::exists(folder_ / of_run)) return stale;
  }
  std::set<std::string> names{std::begin(kCompanions), std::end(kCompanions)};
  for (std::string& name : text::vocabularies_in(folder_)) names.insert(std::move(name));
  for (const std::string& name : names) {
    if (!texts_.contains(name) && fs::is_regular_file(folder_ / name)) stale.push_back(name);
  }
  // What a link leads to is not this folder's.
  if (!fs::is_directory(fs::symlink_status(folder_ / kTemplates))) return stale;
  std::vector<std::string> templates;
  bool holds_others = false;
  for (const auto& found : fs::directory_iterator(folder_ / kTemplates)) {
    const std::string name = fmt::format("{}/{}", kTemplates, found.path().filename().string());
    const bool is_stale =
        found.is_regular_file() && found.path().extension() == ".jinja" && !texts_.contains(name);
    if (is_stale) templates.push_back(name);
    holds_others |= !is_stale;
  }
  const auto is_below = [](const auto& text) {
    return text.first.starts_with(std::string(kTemplates) + "/");
  };
  if (!holds_others && std::ranges::none_of(texts_, is_below)) templates = {kTemplates};
  stale.insert(stale.end(), templates.begin(), templates.end());
  return stale;
}

void ExportFiles::publish() {
  for (File& file : files_) file.writer->finish();
  ZeroCheck zeros(trained_);
  for (const File& file : files_) read_back(file, zeros);
  if (const std::string name = zeros.untrained(); !name.empty()) {
    throw_zeros(folder_ / files_[file_of_.at(name)].name, matrices_like(name));
  }
  for (const auto& [name, content] : texts_) {
    update_.write(name, content);
    if (read_file(update_.path() / name) == content) continue;
    throw IoError(
        "{}: found other bytes after saving, expected what was written; check the disk "
        "and save again",
        (folder_ / name).string());
  }
  std::vector<std::string> stale = stale_weights();
  for (std::string& name : stale_companions()) stale.push_back(std::move(name));
  update_.commit(entry(), stale);
}

}  // namespace strata::checkpoint
