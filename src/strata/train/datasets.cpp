#include "strata/train/datasets.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/data/source.h"

namespace strata::train {
namespace {

std::vector<std::string> split_names(const std::string& list) {
  std::vector<std::string> names;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string name = list.substr(begin, end - begin);
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    if (!name.empty()) names.push_back(name);
    begin = end + 1;
  }
  return names;
}

// Of `splits`, behind the first, the first that the data set has.
std::string evaluation_split(const config::DataConfig& config) {
  const std::vector<std::string> have = data::list_splits(config.dataset_name);
  const std::vector<std::string> names = split_names(config.splits);
  for (size_t i = 1; i < names.size(); ++i) {
    if (std::find(have.begin(), have.end(), names[i]) != have.end()) return names[i];
  }
  throw ConfigError(
      "eval_strategy: found no evaluation split among \"{}\" in {} (it has: {}), "
      "expected one to evaluate on; add it or set eval_strategy no",
      config.splits, config.dataset_name, fmt::join(have, ", "));
}

std::string training_split(const config::DataConfig& config) {
  const std::vector<std::string> names = split_names(config.splits);
  return names.empty() ? "train" : names.front();
}

// The template in a file, or the one of a tokenizer's folder.
std::string read_chat_template(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return read_file(path);
  const std::filesystem::path file = path / "chat_template.jinja";
  const std::string source = std::filesystem::exists(file)
                                 ? read_file(file)
                                 : text::Tokenizer::load(path)->chat_template();
  if (source.empty()) {
    throw ConfigError(
        "chat_template_path: found no chat template in {}, expected chat_template.jinja or a "
        "tokenizer that has one; name the file itself",
        path.string());
  }
  return source;
}

data::PrepareOptions options_of(const config::RunConfig& config, int64_t vocab_size) {
  data::PrepareOptions options;
  options.dataset_text_field = config.data.dataset_text_field;
  options.max_length = config.data.max_length;
  options.packing = config.data.packing;
  options.packing_strategy = config.data.packing_strategy;
  options.completion_only_loss = config.data.completion_only_loss;
  options.assistant_only_loss = config.data.assistant_only_loss;
  options.shuffle = config.data.shuffle_dataset;
  options.seed = config.train.seed;
  options.threads = at::get_num_threads();  // those of this rank
  options.vocab_size = vocab_size;
  return options;
}

}  // namespace

std::filesystem::path tokenizer_folder(const config::ModelConfig& config) {
  if (!config.tokenizer_name.empty()) return config.tokenizer_name;
  if (!config.model_name_or_path.empty()) return config.model_name_or_path;
  const std::filesystem::path path = config.config_name;
  return std::filesystem::is_directory(path) ? path : path.parent_path();
}

Datasets load_datasets(const config::RunConfig& config, int64_t vocab_size) {
  Datasets sets;
  sets.tokenizer = text::Tokenizer::load(tokenizer_folder(config.model));
  if (!config.data.eos_token.empty()) sets.tokenizer->set_eos_token(config.data.eos_token);
  if (!config.data.pad_token.empty()) sets.tokenizer->set_pad_token(config.data.pad_token);
  sets.chat_template_source = config.data.chat_template_path.empty()
                                  ? sets.tokenizer->chat_template()
                                  : read_chat_template(config.data.chat_template_path);
  if (!sets.chat_template_source.empty()) {
    sets.chat_template.emplace(sets.chat_template_source, config.data.chat_template_path.empty()
                                                              ? "chat template"
                                                              : config.data.chat_template_path);
  }
  const text::ChatTemplate* chat = sets.chat_template ? &*sets.chat_template : nullptr;

  data::PrepareOptions options = options_of(config, vocab_size);
  const std::string train_name = training_split(config.data);
  options.subject = fmt::format("{} split of {}", train_name, config.data.dataset_name);
  sets.train = data::prepare(data::load_split(config.data.dataset_name, train_name).rows,
                             *sets.tokenizer, chat, options);

  if (config.train.eval_strategy != "no" || config.train.eval_on_start) {
    const std::string name = evaluation_split(config.data);
    options.subject = fmt::format("{} split of {}", name, config.data.dataset_name);
    options.packing = config.data.eval_packing.value_or(config.data.packing);
    options.separate_documents = config.data.packing;
    sets.eval = data::prepare(data::load_split(config.data.dataset_name, name).rows,
                              *sets.tokenizer, chat, options);
  }
  return sets;
}

}  // namespace strata::train
