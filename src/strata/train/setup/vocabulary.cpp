#include "strata/train/setup/vocabulary.h"

#include <filesystem>
#include <map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/base/error.h"
#include "strata/checkpoint/import.h"
#include "strata/comm/agreement.h"
#include "strata/config/recipes.h"
#include "strata/hf/hub/model.h"
#include "strata/models/vocabulary.h"
#include "strata/shard/loading.h"
#include "strata/text/vocabulary_files.h"
#include "strata/train/datasets.h"
#include "strata/train/setup/hub_place.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

bool may_add_tokens(const config::DataConfig& data) {
  return data.chat_template_format != "none" || fs::is_directory(data.chat_template_path);
}

int64_t rows_of_adapter(const config::RunConfig& config) {
  const std::string& adapter = config.model.adapter_name_or_path;
  return adapter.empty() ? 0 : checkpoint::stored_vocabulary_rows(adapter);
}

void fill_up(text::Tokenizer& tokenizer, int64_t rows) {
  for (int i = 0; tokenizer.vocab_size() < rows; ++i) {
    tokenizer.add_tokens({{.content = fmt::format("<extra_id_{}>", i)}});
  }
}

std::string describe(const Vocabulary& vocabulary) {
  std::vector<std::string> names;
  for (const auto& [token, id] : vocabulary.tokenizer->tokens_since_load()) {
    if (static_cast<int>(names.size()) < vocabulary.chat_template.num_added) {
      names.push_back(token.content);
    }
  }
  const std::string rows =
      vocabulary.num_rows > vocabulary.num_old_rows
          ? fmt::format("embedding and output layer grow from {} to {} rows",
                        vocabulary.num_old_rows, vocabulary.num_rows)
          : fmt::format("the model has {} rows already", vocabulary.num_old_rows);
  return fmt::format("vocabulary: {} new tokens ({}); {}", names.size(), fmt::join(names, ", "),
                     rows);
}

bool has_tokenizer(const fs::path& folder) { return !text::vocabularies_in(folder).empty(); }

double initializer_range_of(const Json& config) {
  for (const char* key : {"initializer_range", "init_std", "initializer_factor"}) {
    const auto value = config.find(key);
    if (value != config.end() && value->is_number() && value->get<double>() != 0) {
      return value->get<double>();
    }
  }
  return 0.02;
}

// As TRL, whose result names it, so that whoever loads it can pad; a text is judged by its last
// token that is none. A token that has no row would make a config.json that nobody can load.
void pad_with_eos(const config::RunConfig& config, Vocabulary& vocabulary) {
  text::Tokenizer& tokenizer = *vocabulary.tokenizer;
  const text::Tokenizer::Specials& specials = tokenizer.specials();
  const config::RecipeRow& recipe = config::recipe_of(config);
  if (recipe.has_encoder || specials.pad || !specials.eos) return;
  const auto id = tokenizer.eos_id();
  const bool has_row = id && (vocabulary.num_old_rows == 0 || *id < vocabulary.num_rows);
  if (has_row || recipe.judges_documents()) tokenizer.set_pad_token(*specials.eos);
}

// Told to a tokenizer that marks the language of a text, as run_translation.py and
// run_summarization.py tell it.
void set_languages(const config::DataConfig& data, text::Tokenizer& tokenizer) {
  if (!tokenizer.has_languages()) {
    for (const auto& [name, code] :
         {std::pair{"lang", data.lang}, {"forced_bos_token", data.forced_bos_token}}) {
      if (code.empty()) continue;
      throw ConfigError(
          "{}: found \"{}\" for a tokenizer that marks no languages ({}), expected none; remove it",
          name, code, tokenizer.pipeline());
    }
    return;
  }
  const bool is_one = !data.lang.empty();
  if (!is_one && data.source_lang.empty()) {
    throw ConfigError(
        "source_lang: found none for {}, which marks the language of each text, expected its code; "
        "add --source_lang and --target_lang, or --lang for columns of one language",
        tokenizer.pipeline());
  }
  tokenizer.set_languages(is_one ? data.lang : data.source_lang,
                          is_one ? data.lang : data.target_lang,
                          is_one ? "lang" : "source_lang and target_lang");
  if (data.forced_bos_token.empty() || tokenizer.language_id(data.forced_bos_token)) return;
  throw ConfigError(
      "forced_bos_token: found \"{}\", expected a language of {} such as {}; change it",
      data.forced_bos_token, tokenizer.pipeline(), is_one ? data.lang : data.target_lang);
}

models::ReadRows rows_of(const shard::Source& source, const nn::Parameter& parameter) {
  const int64_t columns = parameter.shape().size() > 1 ? parameter.shape()[1] : 1;
  return [&source, &parameter, columns](int64_t begin, int64_t count) {
    const at::Tensor values = at::empty({count * columns}, at::TensorOptions().dtype(at::kFloat));
    source(parameter, begin * columns, values);
    return values;
  };
}

}  // namespace

Vocabulary load_vocabulary(const config::RunConfig& config, int64_t num_old_rows) {
  Vocabulary result;
  result.tokenizer = text::Tokenizer::load(tokenizer_folder(config.model));
  result.chat_template = text::choose_chat_template(
      *result.tokenizer, config.data.chat_template_path, config.data.chat_template_format);
  if (!config.data.eos_token.empty()) result.tokenizer->set_eos_token(config.data.eos_token);
  if (!config.data.pad_token.empty()) result.tokenizer->set_pad_token(config.data.pad_token);
  if (config::recipe_of(config).has_encoder) set_languages(config.data, *result.tokenizer);
  result.num_old_rows = result.num_rows = num_old_rows;
  if (num_old_rows == 0) {
    pad_with_eos(config, result);
    return result;
  }
  const int64_t needed = result.tokenizer->vocab_size();
  if (result.chat_template.num_added > 0 && needed > num_old_rows) {
    const int64_t multiple =
        config.model.resize_to_multiple_of.value_or(result.chat_template.multiple);
    result.num_rows = (needed + multiple - 1) / multiple * multiple;
    if (result.chat_template.fills_up) fill_up(*result.tokenizer, result.num_rows);
  }
  if (const int64_t rows = rows_of_adapter(config); rows > 0) result.num_rows = rows;
  pad_with_eos(config, result);
  if (result.chat_template.num_added > 0) result.note = describe(result);
  return result;
}

GrownVocabulary count_rows(const config::RunConfig& config, int64_t num_old_rows, bool alone) {
  GrownVocabulary grown{num_old_rows, num_old_rows, {}};
  if (const int64_t rows = rows_of_adapter(config); rows > 0) return {num_old_rows, rows, {}};
  if (num_old_rows == 0 || !may_add_tokens(config.data)) return grown;
  if (alone && config.model.tokenizer_name.empty() && !config.model.model_name_or_path.empty()) {
    const fs::path folder =
        hf::locate_model_config(config.model.model_name_or_path, hub_place(config.model));
    if (!has_tokenizer(folder)) return grown;
  } else if (alone && !has_tokenizer(tokenizer_folder(config.model))) {
    return grown;
  }
  const Vocabulary vocabulary = load_vocabulary(config, num_old_rows);
  grown.num_rows = vocabulary.num_rows;
  if (!vocabulary.chat_template.fills_up) return grown;
  for (const auto& [token, id] : vocabulary.tokenizer->tokens_since_load()) {
    grown.trained_tokens.push_back(id);
  }
  return grown;
}

void fill_new_rows(const config::RunConfig& config, const Json& model_config,
                   const hf::ModelFolder* folder, const models::WeightSources& sources,
                   models::Model& model, shard::UnitStore& store) {
  comm::Group& world = *store.mesh().world;
  models::NewRowOptions options{.mean_resizing = config.model.mean_resizing,
                                .initializer_range = initializer_range_of(model_config)};
  at::Generator generator = at::detail::createCPUGenerator(config.train.seed);
  // By the file's tensor: two names of one weight of the base start with the same rows.
  std::map<std::string, at::Tensor> drawn;
  const std::vector<models::VocabularyWeight> weights = models::vocabulary_weights(model);
  for (size_t i = 0; i < weights.size(); ++i) {
    const nn::Parameter& parameter = *weights[i].parameter;
    if (parameter.num_new_rows() <= 0) continue;
    options.has_bias = i + 1 < weights.size() && weights[i + 1].name.ends_with(".bias");
    std::vector<int64_t> shape = parameter.shape();
    shape[0] = parameter.num_new_rows();
    at::Tensor rows = at::empty(shape, at::TensorOptions().dtype(parameter.storage_type()));
    comm::all_or_nothing(world, "making rows for new tokens", [&] {
      if (world.rank() != 0) return;
      const shard::Source source = checkpoint::base_source(*folder, sources);
      at::Tensor& found = drawn[sources.at(parameter.name())];
      if (!found.defined()) {
        found = models::draw_new_rows(parameter, rows_of(source, parameter), options, generator);
      }
      rows.copy_(found);
    });
    if (world.size() > 1) world.broadcast(rows, /*root=*/0)->wait();
    shard::place_elements(store, parameter, parameter.numel() - rows.numel(), rows.view({-1}));
  }
}

}  // namespace strata::train
