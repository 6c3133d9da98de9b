#include "strata/checkpoint/convert/saved_formats.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/piece_reader.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/export_index.h"
#include "strata/hf/formats/safetensors.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"
#include "strata/hf/mxfp4.h"
#include "strata/models/gpt2/config.h"
#include "strata/models/registry.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

class StrataState : public SavedState {
 public:
  explicit StrataState(const fs::path& folder) : SavedState(folder), reader_(folder) {
    facts_.format = fmt::format("Strata checkpoint, version {}", Manifest::kVersion);
    const Manifest& manifest = reader_.manifest();
    facts_.world_size = manifest.world_size;
    facts_.step = manifest.step;
    facts_.num_updates = manifest.num_updates;
    if (manifest.files.contains("settings.json")) {
      facts_.settings =
          parse_json(reader_.small_file("settings.json"), (folder / "settings.json").string());
    }
    read_adapter_config(folder / hf::kAdapterConfigFile);
    if (manifest.files.contains(kSecondNames)) read_second_names(folder / kSecondNames);
    if (manifest.files.contains("progress.json")) read_progress(folder / "progress.json");
    for (const auto& [name, record] : manifest.tensors) {
      const size_t slash = name.find('/');
      if (slash == std::string::npos) {
        throw FormatError(
            "{}: found the tensor \"{}\", expected KIND/WEIGHT; use another checkpoint",
            folder.string(), name);
      }
      const std::string kind = name.substr(0, slash);
      const bool is_frozen = kind == kFrozen;
      tensors_.push_back({is_frozen ? kParameter : kind, name.substr(slash + 1),
                          hf::parse_dtype(record.dtype), record.shape, is_frozen});
    }
    arrange();
  }
  void read(size_t index, std::span<std::byte> out) override {
    const SavedTensor& tensor = tensors_[index];
    reader_.read(manifest_key(tensor), 0, out);
  }
  std::string verify() override {
    reader_.verify_all();
    return fmt::format("{}, {} and the manifest", counted(tensors_.size(), "tensor"),
                       counted(reader_.manifest().files.size(), "file"));
  }

 private:
  void read_progress(const fs::path& path) {
    const Json progress = parse_json(reader_.small_file("progress.json"), path.string());
    const auto found = progress.find("base_fingerprint");
    if (found != progress.end() && found->is_string()) {
      facts_.base_fingerprint = found->get<std::string>();
    }
    const auto rows = progress.find("rows_per_step");
    if (rows != progress.end() && rows->is_number_integer()) {
      facts_.rows_per_step = rows->get<int64_t>();
    }
  }

  void read_second_names(const fs::path& path) {
    const Json names = parse_json(reader_.small_file(kSecondNames), path.string());
    if (!names.is_object() || !std::all_of(names.begin(), names.end(),
                                           [](const Json& name) { return name.is_string(); })) {
      throw FormatError("{}: found {}, expected an object of names; use another checkpoint",
                        path.string(), names.dump());
    }
    facts_.second_names = names;
  }

  // Versions before wrote none beside the ranks' files; somebody may have put it there.
  void read_adapter_config(const fs::path& path) {
    if (reader_.manifest().files.contains(hf::kAdapterConfigFile)) {
      facts_.adapter_config = parse_json(reader_.small_file(hf::kAdapterConfigFile), path.string());
    } else if (fs::exists(path)) {
      facts_.adapter_config = read_json_file(path);
    }
  }

  PieceReader reader_;
};

// What can be wrong with a safetensors file beyond its header is not written in it.
constexpr const char* kNoChecksums = "layout only: safetensors files hold no checksums";

class SafetensorsState : public SavedState {
 public:
  explicit SafetensorsState(const fs::path& path) : SavedState(path), file_(path) {
    facts_.format = "safetensors file";
    for (const hf::TensorInfo& info : file_.tensors()) {
      tensors_.push_back({kParameter, info.name, info.dtype, info.shape});
    }
  }
  void read(size_t index, std::span<std::byte> out) override {
    const auto bytes = view(index);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    forget_pages(bytes);
  }
  std::span<const std::byte> view(size_t index) override {
    return file_.bytes(file_.tensors()[index]);
  }
  void forget(size_t index) override { forget_pages(view(index)); }
  std::string verify() override { return kNoChecksums; }

 private:
  hf::SafetensorsFile file_;
};

// Codes and what they are decoded with.
std::set<std::string> parts_of_codes(const hf::ModelFolder& folder) {
  std::set<std::string> parts;
  for (const std::string& name : hf::mxfp4_parts(folder)) parts.insert(name);
  if (folder.is_adapter() || !hf::announces_codes(folder.config())) return parts;
  for (const std::string& name : folder.names()) {
    const std::vector<std::string> companions = hf::quantized_companions(folder, name);
    // 8-bit state lies beside the bias, too.
    if (companions.empty() || !name.ends_with(".weight")) continue;
    parts.insert(name);
    parts.insert(companions.begin(), companions.end());
  }
  return parts;
}

// What lies beside weights in fp8 or integers, which are decoded as they are read, and in no copy.
std::set<std::string> parts_of_decoded(const hf::ModelFolder& folder) {
  const std::vector<std::string> scales = hf::fp8_scales(folder);
  std::set<std::string> parts(scales.begin(), scales.end());
  if (scales.empty() && hf::int_weights(folder).empty()) return parts;
  for (std::string& name : folder.names()) {
    if (hf::is_fp8_activation_scale(name)) parts.insert(std::move(name));
  }
  return parts;
}

// Biases of zeros that no layer of the model has.
std::set<std::string> void_biases(const hf::ModelFolder& folder) {
  std::set<std::string> biases;
  for (const std::string& name : folder.names()) {
    if (hf::is_void_bias(folder, name)) biases.insert(name);
  }
  if (biases.empty()) return biases;
  try {
    const auto model = models::create_model(folder.config(), {});
    for (const nn::Parameter* parameter : model->parameters()) biases.erase(parameter->name());
  } catch (const ConfigError&) {  // of a family that is not here: nobody knows
    biases.clear();
  }
  return biases;
}

class ModelFolderState : public SavedState {
 public:
  explicit ModelFolderState(const fs::path& path) : SavedState(path), folder_(path) {
    facts_.format = folder_.is_adapter() ? "PEFT adapter" : "Hugging Face model";
    if (folder_.is_adapter()) facts_.adapter_config = folder_.config();
    facts_.base_fingerprint =
        folder_.is_adapter() ? hf::fingerprint_in(folder_) : base_mark(folder_);
    facts_.step = readable_step(path);
    const std::set<std::string> of_codes = parts_of_codes(folder_);
    const std::set<std::string> of_decoded = parts_of_decoded(folder_);
    const std::set<std::string> is_void = void_biases(folder_);
    if (!hf::fp8_scales(folder_).empty()) facts_.format += " in fp8";
    for (const std::string& name : hf::names_of_copy(folder_)) {
      if (of_decoded.contains(name) || is_void.contains(name) || takes_ints(name)) continue;
      const hf::TensorInfo& info = *folder_.find(name);
      tensors_.push_back({.kind = kParameter,
                          .weight = name,
                          .dtype = is_fp8(name) ? shard::decoded_type(folder_) : info.dtype,
                          .shape = info.shape,
                          .is_of_codes = of_codes.contains(name)});
    }
  }
  void read(size_t index, std::span<std::byte> out) override {
    const SavedTensor& tensor = tensors_[index];
    if (const auto fp8 = hf::find_readable_fp8(folder_, tensor.weight)) {
      shard::read_fp8(folder_, *fp8, /*begin=*/0, tensor.dtype, out);
      return;
    }
    if (const auto ints = hf::find_readable_ints(folder_, tensor.weight)) {
      shard::read_ints(folder_, *ints, /*begin=*/0, tensor.dtype, out);
      return;
    }
    const auto bytes = view(index);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    forget_pages(bytes);
  }
  std::span<const std::byte> view(size_t index) override {
    const std::string& name = tensors_[index].weight;
    const hf::TensorInfo* info = folder_.find(name);
    if (info == nullptr || is_fp8(name)) return {};
    return folder_.bytes(*info);
  }
  void forget(size_t index) override { forget_pages(view(index)); }
  std::string verify() override { return kNoChecksums; }

 private:
  bool is_fp8(const std::string& name) const {
    return hf::find_readable_fp8(folder_, name).has_value();
  }

  // Whether it is a weight in integers; then it is listed.
  bool takes_ints(const std::string& name) {
    const auto ints = hf::find_readable_ints(folder_, name);
    if (!ints) return false;
    if (models::is_conv1d_weight(folder_.config(), name)) {
      throw ConfigError(
          "{}: found \"{}\" for a weight that files hold as [in, out] (GPT-2's Conv1D), expected "
          "plain weights; use a checkpoint of 16 bits",
          folder_.path().string(), ints->codes->name);
    }
    constexpr std::string_view kInIntegers = " in integers";
    if (!facts_.format.ends_with(kInIntegers)) facts_.format += kInIntegers;
    tensors_.push_back(
        {.kind = kParameter, .weight = name, .dtype = ints->dtype(), .shape = ints->dims()});
    return true;
  }

  hf::ModelFolder folder_;
};

}  // namespace

std::unique_ptr<SavedState> open_strata(const fs::path& folder) {
  return std::make_unique<StrataState>(folder);
}
std::unique_ptr<SavedState> open_safetensors(const fs::path& file) {
  return std::make_unique<SafetensorsState>(file);
}
std::unique_ptr<SavedState> open_model_folder(const fs::path& folder) {
  return std::make_unique<ModelFolderState>(folder);
}
}  // namespace strata::checkpoint
