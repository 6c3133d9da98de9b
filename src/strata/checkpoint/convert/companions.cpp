// The files beside a model's weights (convert.h): where they are and how they are copied.
#include <algorithm>
#include <memory>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/special_tokens.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/hf/fp8.h"
#include "strata/hf/hub/cache.h"
#include "strata/hf/int_form.h"
#include "strata/hf/mxfp4.h"
#include "strata/hf/quantization_entry.h"
#include "strata/models/reward_head.h"
#include "strata/shard/storage_type.h"
#include "strata/text/tokenizer.h"
#include "strata/text/vocabulary_files.h"

namespace strata::checkpoint {

namespace fs = std::filesystem;

std::vector<NamedBase> named_bases(const SavedState& state) {
  std::vector<NamedBase> bases;
  const auto add = [&](const std::string& name, const std::string& revision) {
    if (name.empty() || name == "none") return;
    NamedBase base{.name = name, .place = {}};
    if (const std::string cache = setting_of(state, "cache_dir"); cache != "none") {
      base.place.cache = cache;
    }
    if (!revision.empty() && revision != "none") base.place.revision = revision;
    bases.push_back(std::move(base));
  };
  add(setting_of(state, "model_name_or_path"), setting_of(state, "model_revision"));
  const Json& adapter = state.facts().adapter_config;
  const auto text = [&](const char* key) {
    const auto found = adapter.is_object() ? adapter.find(key) : adapter.end();
    const bool is_text = adapter.is_object() && found != adapter.end() && found->is_string();
    return is_text ? found->get<std::string>() : "";
  };
  add(text("base_model_name_or_path"), text("revision"));
  return bases;
}

// Its folder, which may not be there; never asks the network.
static fs::path folder_here(const NamedBase& base) {
  const hf::HubRequest request{
      .name = base.name, .revision = base.place.revision, .cache = base.place.cache};
  const bool is_on_hub =
      !fs::exists(base.name) && hf::is_hub_name(base.name) && hf::is_hub_revision(request.revision);
  return is_on_hub && hf::has_snapshot(request) ? hf::find_snapshot(request) : fs::path(base.name);
}

fs::path base_model_of(const SavedState& state) {
  std::vector<fs::path> known;
  const fs::path& path = state.path();
  // A config.json beside an adapter is that of a base without its weights.
  if (!state.is_adapter()) known.push_back(fs::is_directory(path) ? path : path.parent_path());
  for (const NamedBase& base : named_bases(state)) known.push_back(folder_here(base));
  for (const fs::path& folder : known) {
    if (!folder.empty() && fs::exists(folder / "config.json")) return folder;
  }
  return {};
}

// The type that config.json of the run's base names; empty where the base is not here.
static std::string base_dtype(const SavedState& state) {
  const std::vector<NamedBase> bases = named_bases(state);
  if (bases.empty() || bases[0].name != setting_of(state, "model_name_or_path")) return "";
  const fs::path config = folder_here(bases[0]) / "config.json";
  return fs::is_regular_file(config) ? shard::named_type(read_json_file(config)) : "";
}

std::optional<hf::DType> result_type_of(const SavedState& state) {
  const std::string save_dtype = setting_of(state, "save_dtype");
  if (save_dtype.empty()) return std::nullopt;  // another tool's, or of a version without it
  std::string name = shard::result_dtype({.save_dtype = save_dtype,
                                          .dtype = setting_of(state, "dtype"),
                                          .bf16 = setting_of(state, "bf16") == "true",
                                          .fp16 = setting_of(state, "fp16") == "true",
                                          .is_adapter = state.is_adapter()});
  // The checkpoint's own config.json speaks of the checkpoint.
  if (name == "auto") name = base_dtype(state);
  const bool is_narrow = name == "bfloat16" || name == "float16";
  return is_narrow ? hf::dtype_of_torch_dtype(name) : std::nullopt;
}

namespace {

constexpr const char* kTokenizerSettings = "tokenizer_config.json";

void copy_generation_config(const fs::path& from, const fs::path& to, const ConfigChange& change,
                            const text::Tokenizer* special_tokens) {
  constexpr const char* kName = "generation_config.json";
  if (!fs::is_regular_file(from / kName)) return;
  std::string text = read_file(from / kName);
  if (special_tokens != nullptr) {
    Json config = parse_json(text, (from / kName).string());
    const Json old = config;
    if (config.is_object()) {
      align_special_tokens(*special_tokens, /*is_generation=*/true, config);
    }
    if (config != old) text = dump_python(config) + "\n";
  }
  write_file_atomically(to / kName, text, *change.files);
}

// The one that was copied; null: the base's ids stay.
std::unique_ptr<text::Tokenizer> copied_tokenizer(const fs::path& to, const ConfigChange& change) {
  const bool has_own = !text::vocabularies_in(change.tokenizer).empty() ||
                       fs::exists(change.tokenizer / kTokenizerSettings);
  if (!change.takes_special_tokens || !has_own || text::vocabularies_in(to).empty()) return nullptr;
  try {
    return text::Tokenizer::load(to);
  } catch (const Error& error) {
    if (change.notes != nullptr) {
      change.notes->push_back(
          fmt::format("config.json and generation_config.json keep the base's end of an answer: {}",
                      error.what()));
    }
    return nullptr;
  }
}

}  // namespace

bool is_of_integers(const SavedTensor& tensor) {
  return tensor.is_parameter() && tensor.dtype == hf::DType::kI32 &&
         (tensor.weight.ends_with(".qweight") || tensor.weight.ends_with(".weight_packed"));
}

bool is_packed(const SavedTensor& tensor) {
  if (tensor.is_parameter() && tensor.dtype == hf::DType::kF8E4M3) return true;
  if (is_of_integers(tensor)) return true;
  return (tensor.is_of_codes || tensor.dtype == hf::DType::kU8) &&
         (tensor.weight.ends_with("_blocks") || tensor.weight.ends_with("_scales"));
}

bool holds_packed(const SavedState& state) {
  return std::ranges::any_of(state.tensors(), is_packed);
}

hf::DType plain_type(const SavedState& state) {
  const auto found = std::ranges::find_if(state.tensors(), [](const SavedTensor& tensor) {
    return !tensor.is_of_codes && at::isFloatingType(memory_type_of(tensor.dtype));
  });
  return (found == state.tensors().end() ? state.tensors()[0] : *found).dtype;
}

int64_t labels_of_head(const SavedState& state) {
  const auto head = std::ranges::find_if(state.tensors(), [](const SavedTensor& tensor) {
    return models::is_label_weight(tensor.weight) && tensor.shape.size() == 2;
  });
  return head == state.tensors().end() ? 0 : head->shape[0];
}

static constexpr const char* kTemplateFile = "chat_template.jinja";

// Whether the tokenizer's settings hold one, and no file does.
static bool holds_template(const fs::path& tokenizer) {
  const fs::path settings = tokenizer / kTokenizerSettings;
  if (tokenizer.empty() || fs::exists(tokenizer / kTemplateFile)) return false;
  if (!fs::is_regular_file(settings)) return false;
  const Json config = read_json_file(settings);
  return config.is_object() && config.contains("chat_template");
}

void copy_tokenizer(const fs::path& from, const fs::path& to, FileSystem& files,
                    bool with_template) {
  std::vector<std::string> names = text::vocabularies_in(from);
  for (const char* beside :
       {kTokenizerSettings, "special_tokens_map.json", "added_tokens.json", "merges.txt"}) {
    if (fs::is_regular_file(from / beside)) names.emplace_back(beside);
  }
  if (with_template && fs::is_regular_file(from / kTemplateFile)) names.emplace_back(kTemplateFile);
  for (const std::string& name : names) {
    write_file_atomically(to / name, read_file(from / name), files);
  }
  constexpr const char* kTemplates = "additional_chat_templates";
  if (!fs::is_directory(from / kTemplates)) return;
  const int error = fs::is_directory(to / kTemplates) ? 0 : files.make_folder(to / kTemplates);
  if (error != 0) {
    throw IoError("{}: found {} when creating it, expected room for it; free space",
                  (to / kTemplates).string(), errno_text(error));
  }
  for (const auto& file : fs::directory_iterator(from / kTemplates)) {
    if (!file.is_regular_file()) continue;
    write_file_atomically(to / kTemplates / file.path().filename(), read_file(file.path()), files);
  }
}

bool copy_companions(const fs::path& from, const fs::path& to, const ConfigChange& change) {
  // Settings without a vocabulary, such as a template, go over those of the base.
  const bool is_whole =
      !change.tokenizer.empty() && !text::vocabularies_in(change.tokenizer).empty();
  if (!is_whole) {
    // A template in settings is read only where none has a file of its own.
    copy_tokenizer(from, to, *change.files, /*with_template=*/!holds_template(change.tokenizer));
  }
  if (!change.tokenizer.empty()) copy_tokenizer(change.tokenizer, to, *change.files);
  const std::unique_ptr<text::Tokenizer> tokenizer = copied_tokenizer(to, change);
  copy_generation_config(from, to, change, tokenizer.get());
  if (!fs::exists(from / "config.json")) return false;
  Json config = change.config.is_null() ? read_json_file(from / "config.json") : change.config;
  if (config.is_object()) config.erase("transformers_weights");  // the files' names are others
  if (config.is_object() && change.type) {
    config.erase("torch_dtype");
    config["dtype"] = std::string(hf::torch_dtype_of(*change.type));
  }
  // What is written are plain weights.
  const bool was_packed =
      config.is_object() &&
      (hf::announces_mxfp4(config) || hf::announces_fp8(config) || hf::announces_ints(config));
  if (was_packed ? !change.is_packed : config.is_object() && change.is_decoded) {
    hf::erase_quantization(config);
  }
  if (config.is_object() && change.unties_head) config["tie_word_embeddings"] = false;
  if (config.is_object() && change.num_labels > 0) {
    models::give_labels_of({}, change.num_labels, config);
  }
  if (config.is_object() && change.vocab_size) config["vocab_size"] = *change.vocab_size;
  if (config.is_object() && tokenizer != nullptr) {
    align_special_tokens(*tokenizer, /*is_generation=*/false, config);
  }
  write_file_atomically(to / "config.json", dump_python(config) + "\n", *change.files);
  return true;
}

}  // namespace strata::checkpoint
