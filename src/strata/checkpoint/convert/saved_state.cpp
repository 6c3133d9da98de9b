#include "strata/checkpoint/convert/saved_state.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/checkpoint/convert/saved_formats.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/repair.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/folder_contents.h"
#include "strata/hf/formats/dcp.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_zip(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  char magic[4] = {};
  stream.read(magic, 4);
  return std::string_view(magic, 4) == std::string_view("PK\x03\x04", 4);
}

std::unique_ptr<SavedState> open_file(const fs::path& path) {
  if (path.extension() == ".safetensors") return open_safetensors(path);
  if (is_zip(path)) return open_torch_files(path, {path});
  if (path.extension() == ".gguf") {
    throw FormatError(
        "{}: found a GGUF file, expected the folder of a model, an adapter or a checkpoint, as "
        "such "
        "files are written here and not read; name what it was made from",
        path.string());
  }
  throw FormatError(
      "{}: found a file that is neither safetensors nor a zip of torch.save, expected one of them; "
      "files of torch before 1.6 must be saved again",
      path.string());
}

// The newest checkpoint of an output folder, for the message.
std::string checkpoints_in(const fs::path& folder) {
  const auto found = list(folder);
  if (found.empty()) return "";
  return fmt::format("; its newest checkpoint is {}", found.back().string());
}

constexpr const char* kFsdpWeights = "pytorch_model_fsdp.bin";
constexpr const char* kOptimizer = "optimizer.bin";
constexpr const char* kTrainerOptimizer = "optimizer.pt";

// Files of torch.save beside each other; null: there are none.
std::unique_ptr<SavedState> open_torch_folder(const fs::path& path) {
  std::vector<fs::path> parts;
  std::map<std::string, std::string> weight_map;
  for (const char* name : {kFsdpWeights, "pytorch_model.bin", "adapter_model.bin"}) {
    if (parts.empty() && fs::exists(path / name)) parts.push_back(path / name);
  }
  if (const fs::path index = path / hf::kTorchIndexFile; parts.empty() && fs::exists(index)) {
    weight_map = hf::read_weight_map(index);
    for (const std::string& file : hf::indexed_files(index, weight_map)) {
      parts.push_back(path / file);
    }
  }
  for (const char* name : {kOptimizer, kTrainerOptimizer}) {
    if (fs::exists(path / name)) parts.push_back(path / name);
  }
  if (parts.empty()) return nullptr;
  std::unique_ptr<SavedState> state = open_torch_files(path, parts);
  std::set<std::string> found;
  for (const SavedTensor& tensor : state->tensors()) found.insert(tensor.weight);
  for (const auto& [tensor, file] : weight_map) {
    if (found.contains(tensor)) continue;
    throw FormatError(
        "{}: found tensor {} in no file, expected it in {}; index and files are not from one save, "
        "fetch them again",
        (path / hf::kTorchIndexFile).string(), quote_json(tensor), file);
  }
  return state;
}

constexpr const char* kDeepspeedScript = "zero_to_fp32.py";

// The folder that DeepSpeed saved in, which has its script: `path` itself, or above one tag of it.
std::optional<fs::path> deepspeed_folder(const fs::path& path) {
  const fs::path here = path.has_filename() ? path : path.parent_path();
  for (const fs::path& folder : {here, here.parent_path()}) {
    if (fs::is_regular_file(folder / kDeepspeedScript)) return folder;
  }
  return std::nullopt;
}

std::unique_ptr<SavedState> open_folder(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) return open_strata(path);
  if (hf::is_dcp_folder(path)) return open_dcp(path, {path});
  std::vector<fs::path> parts;
  for (const char* name : {"pytorch_model_fsdp_0", "optimizer_0"}) {
    if (hf::is_dcp_folder(path / name)) parts.push_back(path / name);
  }
  if (!parts.empty()) return open_dcp(path, parts);
  // FSDP's FULL_STATE_DICT of transformers' Trainer: the optimizer's names are those of this file.
  if (fs::exists(path / kFsdpWeights) && fs::exists(path / kOptimizer)) {
    return open_torch_files(path, {path / kFsdpWeights, path / kOptimizer});
  }
  for (const char* name : {hf::kModelWeightsFile, hf::kModelIndexFile, hf::kAdapterWeightsFile}) {
    if (!fs::exists(path / name)) continue;
    return fs::exists(path / kTrainerOptimizer) ? open_trainer_folder(path)
                                                : open_model_folder(path);
  }
  if (auto state = open_torch_folder(path)) return state;
  if (const auto saved = deepspeed_folder(path)) {
    throw FormatError(
        "{}: found a checkpoint of DeepSpeed, whose files hold parts without names, expected whole "
        "weights; its own script makes them: python {} {} OUT",
        path.string(), (*saved / kDeepspeedScript).string(), saved->string());
  }
  throw FormatError(
      "{}: found nothing that can be read, expected a checkpoint, a model or adapter in "
      "safetensors, "
      "a folder of torch.distributed.checkpoint or files of torch.save{}",
      path.string(), checkpoints_in(path));
}

}  // namespace

uint64_t SavedTensor::size_bytes() const {
  uint64_t bytes = hf::size_of(dtype);
  for (int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

std::string manifest_key(const SavedTensor& tensor) {
  return fmt::format("{}/{}", tensor.is_frozen ? kFrozen : tensor.kind, tensor.weight);
}

bool SavedState::has_optimizer() const {
  return std::ranges::any_of(tensors_, [](const SavedTensor& t) { return !t.is_parameter(); });
}

bool SavedState::is_adapter() const {
  return std::ranges::any_of(tensors_, [](const SavedTensor& t) {
    for (const char* part : {".lora_", ".ia3_l", ".vera_lambda_", hf::kPromptKey}) {
      if (t.weight.find(part) != std::string::npos) return true;
    }
    return false;
  });
}

std::vector<size_t> SavedState::arrange() {
  std::vector<size_t> order(tensors_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [this](size_t a, size_t b) {
    return tensors_[a].is_parameter() > tensors_[b].is_parameter();
  });
  std::vector<SavedTensor> arranged;
  for (size_t i : order) arranged.push_back(std::move(tensors_[i]));
  tensors_ = std::move(arranged);
  return order;
}

std::unique_ptr<SavedState> open_saved_state(const fs::path& path) {
  require_finished(path);
  if (fs::is_directory(path)) return open_folder(path);
  if (fs::is_regular_file(path)) return open_file(path);
  throw IoError("{}: found nothing there, expected a file or a folder; check the path{}",
                path.string(), did_you_mean(path));
}

std::string numbered_states(const SavedState& state) {
  const bool has_numbers = std::ranges::any_of(state.tensors(), [](const SavedTensor& tensor) {
    return !tensor.is_parameter() && std::ranges::all_of(tensor.weight, [](char letter) {
      return letter >= '0' && letter <= '9';
    });
  });
  const fs::path& path = state.path();
  if (has_numbers && !fs::is_directory(path)) return path.filename().string();
  const bool has_own = fs::exists(path / kOptimizer);
  if (has_numbers) return has_own ? kOptimizer : kTrainerOptimizer;
  return !state.has_optimizer() && has_own ? kOptimizer : "";
}

void name_tensor(const std::vector<std::string>& path, SavedTensor& tensor) {
  const auto state = std::ranges::find(path, "state");
  if (path.end() - state == 4 && state[2] == kQuantState) {
    tensor.weight = state[1];
    tensor.kind = state[3];
    return;
  }
  if (path.end() - state == 3) {
    tensor.weight = state[1];
    tensor.kind = state[2];
    return;
  }
  tensor.kind = kParameter;
  tensor.weight = fmt::format("{}", fmt::join(path, "."));
}

}  // namespace strata::checkpoint
