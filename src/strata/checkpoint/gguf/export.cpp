#include "strata/checkpoint/gguf/export.h"

#include <algorithm>
#include <iterator>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/gguf/family.h"
#include "strata/checkpoint/gguf/proved_file.h"
#include "strata/checkpoint/gguf/tensor_plan.h"
#include "strata/checkpoint/gguf/tensor_rows.h"
#include "strata/checkpoint/gguf/tokenizer.h"
#include "strata/hf/formats/gguf.h"
#include "strata/text/vocabulary_files.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;
using hf::GgufType;

// The number by which llama.cpp calls the mixture of types of a file.
uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
  }
  throw InternalError("GGUF: found a file of {}, expected F32, F16, Q8_0 or BF16",
                      hf::gguf_type_name(type));
}

// The folder of the model that the state is of.
fs::path require_model(const SavedState& state) {
  const std::string path = state.path().string();
  if (state.is_adapter()) {
    throw ConfigError(
        "{}: found an adapter, expected a whole model; "
        "merge it first, with strata merge-adapter",
        path);
  }
  const fs::path base = base_model_of(state);
  if (base.empty()) {
    throw ConfigError(
        "{}: found no config.json, expected the folder of a model; put the base's next to the "
        "weights",
        path);
  }
  if (std::ranges::none_of(state.tensors(), &SavedTensor::is_parameter)) {
    throw ConfigError(
        "{}: found no weights, expected some to convert; name the folder that holds them", path);
  }
  const bool has_codes = std::ranges::any_of(
      state.tensors(), [](const SavedTensor& tensor) { return tensor.is_of_codes; });
  if (has_codes || is_quantized_folder(base)) {
    throw ConfigError(
        "{}: found a quantised model, expected plain weights; "
        "convert the model that it was made from",
        path);
  }
  return base;
}

fs::path tokenizer_folder(const SavedState& state, const fs::path& base) {
  for (const fs::path& folder : {state.path(), base}) {
    if (fs::is_directory(folder) && !text::vocabularies_in(folder).empty()) return folder;
  }
  throw ConfigError(
      "{}: found no tokenizer, expected one next to config.json, as a GGUF file also holds it; "
      "copy tokenizer.json and tokenizer_config.json of the base model there",
      base.string());
}

// All ids that end an answer.
std::vector<int64_t> ends_of(const fs::path& base, const Json& config) {
  std::vector<int64_t> ends;
  const auto add = [&](const Json& from) {
    const Json ids = from.is_object() ? from.value("eos_token_id", Json()) : Json();
    for (const Json& id : ids.is_array() ? ids : Json::array({ids})) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0) continue;
      if (std::ranges::find(ends, id.get<int64_t>()) == ends.end())
        ends.push_back(id.get<int64_t>());
    }
  };
  const fs::path generation = base / "generation_config.json";
  if (fs::is_regular_file(generation)) add(read_json_file(generation));
  add(config);
  return ends;
}

class GgufExport {
 public:
  GgufExport(SavedState& state, const fs::path& base, const GgufOptions& options)
      : state_(state), type_(options.type.value_or(gguf_type_of(state))) {
    const Json config = read_json_file(base / "config.json");
    const GgufFamily family = describe_family(config);
    plan_ = plan_tensors(state, config, family, type_);
    const GgufTokenizer tokenizer = describe_tokenizer(tokenizer_folder(state, base), config,
                                                       ends_of(base, config), plan_.num_rows);
    metadata_ = {{"general.architecture", family.architecture},
                 {"general.type", std::string("model")},
                 {"general.name", gguf_name(base)},
                 {"general.file_type", file_type(type_)},
                 {"general.quantization_version", uint32_t{2}}};
    append(family.keys, metadata_);
    append(tokenizer.keys, metadata_);
    append(family.notes, notes_);
    append(plan_.notes, notes_);
    append(tokenizer.notes, notes_);
    for (const PlannedTensor& planned : plan_.tensors) tensors_.push_back(planned.tensor);
  }

  std::vector<std::string> write(const fs::path& out, FileSystem& files) {
    const auto write_tensor = [this](size_t place, const ByteSink& sink) {
      write_rows(state_, plan_.tensors[place], sink);
    };
    return write_proved(
        out,
        {.metadata = std::move(metadata_), .tensors = std::move(tensors_), .write = write_tensor},
        state_.path().string(), files);
  }

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  template <typename List>
  static void append(const List& more, List& list) {
    list.insert(list.end(), more.begin(), more.end());
  }

  SavedState& state_;
  GgufType type_;
  TensorPlan plan_;
  hf::GgufMetadata metadata_;
  std::vector<hf::GgufTensor> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> convert_to_gguf(SavedState& state, const fs::path& out,
                                         const GgufOptions& options) {
  require_new_file(out);
  const fs::path base = require_model(state);
  GgufExport exported(state, base, options);
  std::vector<std::string> notes = exported.write(out, *options.files);
  notes.insert(notes.end(), exported.notes().begin(), exported.notes().end());
  if (state.has_optimizer()) {
    notes.emplace_back("the optimizer's state is left out: this format has no place for it");
  }
  return notes;
}

}  // namespace strata::checkpoint
