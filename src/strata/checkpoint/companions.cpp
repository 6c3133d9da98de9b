// The files beside a model's weights (convert.h): where they are and how they are copied.
#include <algorithm>
#include <array>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert.h"
#include "strata/checkpoint/param_groups.h"
#include "strata/checkpoint/special_tokens.h"
#include "strata/hf/mxfp4.h"
#include "strata/hf/torch_types.h"
#include "strata/models/reward_head.h"

namespace strata::checkpoint {

namespace fs = std::filesystem;

fs::path base_model_of(const SavedState& state) {
  std::vector<fs::path> known;
  const fs::path& path = state.path();
  known.push_back(fs::is_directory(path) ? path : path.parent_path());
  if (const std::string named = setting_of(state, "model_name_or_path"); !named.empty()) {
    known.emplace_back(named);
  }
  const Json& adapter = state.facts().adapter_config;
  if (adapter.is_object() && adapter.contains("base_model_name_or_path") &&
      adapter["base_model_name_or_path"].is_string()) {
    known.emplace_back(adapter["base_model_name_or_path"].get<std::string>());
  }
  for (const fs::path& folder : known) {
    if (!folder.empty() && fs::exists(folder / "config.json")) return folder;
  }
  return {};
}

namespace {

void copy_generation_config(const fs::path& from, const fs::path& to, const ConfigChange& change) {
  constexpr const char* kName = "generation_config.json";
  if (!fs::is_regular_file(from / kName)) return;
  std::string text = read_file(from / kName);
  if (change.special_tokens != nullptr) {
    Json config = parse_json(text, (from / kName).string());
    const Json old = config;
    if (config.is_object()) {
      align_special_tokens(*change.special_tokens, /*is_generation=*/true, config);
    }
    if (config != old) text = dump_python(config) + "\n";
  }
  write_file_atomically(to / kName, text, *change.files);
}

}  // namespace

bool is_packed(const SavedTensor& tensor) {
  return tensor.is_of_codes &&
         (tensor.weight.ends_with("_blocks") || tensor.weight.ends_with("_scales"));
}

bool holds_packed(const SavedState& state) {
  return std::ranges::any_of(state.tensors(), is_packed);
}

bool holds_reward_head(const SavedState& state) {
  return std::ranges::any_of(state.tensors(), [](const SavedTensor& tensor) {
    return tensor.weight == models::kRewardWeight && tensor.shape.size() == 2 &&
           tensor.shape[0] == 1;
  });
}

bool copy_tokenizer(const fs::path& from, const fs::path& to, FileSystem& files) {
  constexpr std::array kNames = {"tokenizer.json",    "tokenizer_config.json",
                                 "tokenizer.model",   "special_tokens_map.json",
                                 "added_tokens.json", "vocab.json",
                                 "vocab.txt",         "merges.txt",
                                 "spiece.model",      "chat_template.jinja"};
  bool has_one = false;
  for (const char* name : kNames) {
    if (!fs::is_regular_file(from / name)) continue;
    write_file_atomically(to / name, read_file(from / name), files);
    has_one = true;
  }
  constexpr const char* kTemplates = "additional_chat_templates";
  if (!has_one || !fs::is_directory(from / kTemplates)) return has_one;
  if (const int error = files.make_folder(to / kTemplates)) {
    throw IoError("{}: found {} when creating it, expected room for it; free space",
                  (to / kTemplates).string(), errno_text(error));
  }
  for (const auto& file : fs::directory_iterator(from / kTemplates)) {
    if (!file.is_regular_file()) continue;
    write_file_atomically(to / kTemplates / file.path().filename(), read_file(file.path()), files);
  }
  return has_one;
}

bool copy_companions(const fs::path& from, const fs::path& to, const ConfigChange& change) {
  copy_generation_config(from, to, change);
  if (change.tokenizer.empty() || !copy_tokenizer(change.tokenizer, to, *change.files)) {
    copy_tokenizer(from, to, *change.files);
  }
  if (!fs::exists(from / "config.json")) return false;
  Json config = change.config.is_null() ? read_json_file(from / "config.json") : change.config;
  if (config.is_object() && change.type) {
    config.erase("torch_dtype");
    config["dtype"] = std::string(hf::torch_dtype_of(*change.type));
  }
  // What is written are plain weights.
  const bool was_packed = config.is_object() && hf::announces_mxfp4(config);
  if (was_packed ? !change.is_packed : config.is_object() && change.is_decoded) {
    config.erase("quantization_config");
  }
  if (config.is_object() && change.unties_head) config["tie_word_embeddings"] = false;
  if (config.is_object() && change.gives_rewards) models::give_reward_head(config);
  if (config.is_object() && change.vocab_size) config["vocab_size"] = *change.vocab_size;
  if (config.is_object() && change.special_tokens != nullptr) {
    align_special_tokens(*change.special_tokens, /*is_generation=*/false, config);
  }
  write_file_atomically(to / "config.json", dump_python(config) + "\n", *change.files);
  return true;
}

}  // namespace strata::checkpoint
