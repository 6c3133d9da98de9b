#include "strata/train/loop/answers.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/labels.h"
#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/models/registry.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/batch_tensors.h"
#include "strata/train/loop/decode_answers.h"
#include "strata/train/setup/model_config.h"

namespace strata::train {
namespace {

std::vector<int32_t> eos_ids_in(const Json& model_config) {
  const Json entry = model_config.value("eos_token_id", Json());
  std::vector<int32_t> ids;
  for (const Json& id : entry.is_array() ? entry : Json::array({entry})) {
    if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Those of the base's files, and the tokenizer's, as the reference's Trainer aligns them.
std::vector<int32_t> eos_ids_of(const Trainee& trainee, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = trainee.generation.eos_ids;
  if (ids.empty()) ids = eos_ids_in(trainee.model_config);
  if (tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  return ids;
}

// An end is never banned, nor an id that the model lacks.
std::vector<int32_t> banned_ids_of(const Trainee& trainee, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = trainee.generation.banned_ids;
  const std::vector<int32_t> ends = eos_ids_of(trainee, tokenizer);
  std::erase_if(ids, [&](int32_t id) {
    return id < 0 || id >= trainee.model->vocab_size() || std::ranges::find(ends, id) != ends.end();
  });
  return ids;
}

// The reference gives all of them one score: the first is taken. -1: none.
int64_t forced_token(const std::vector<int32_t>& ids, const char* key, const Trainee& trainee) {
  if (ids.empty()) return -1;
  const int64_t id = *std::ranges::min_element(ids);
  if (id >= 0 && id < trainee.model->vocab_size()) return id;
  throw FormatError("{}: found {} = {}, expected a token of the vocabulary of {}; fix the file",
                    trainee.generation.source, key, id, trainee.model->vocab_size());
}

int64_t first_token(const config::RunConfig& config, const text::Tokenizer& tokenizer,
                    const Trainee& trainee) {
  const std::string& code = config.data.forced_bos_token;
  if (code.empty()) {
    return forced_token(trainee.generation.forced_bos_ids, "forced_bos_token_id", trainee);
  }
  return tokenizer.language_id(code).value();
}

// Of mBART, which has a start for each text in training, the target's language where its files say
// nothing, as in run_translation.py.
int64_t start_of(const config::RunConfig& config, const text::Tokenizer& tokenizer,
                 const Trainee& trainee) {
  const generate::GenerationConfig& file = trainee.generation;
  if (file.decoder_start_id) return *file.decoder_start_id;
  const int64_t start = trainee.model->decoder_start_id().value();
  if (start != kStartsWithLastToken) {
    // Trainer writes the tokenizer's over the file's.
    if (tokenizer.bos_id()) return *tokenizer.bos_id();
    return file.bos_id.value_or(start);
  }
  const Json in_config = trainee.model_config.value("decoder_start_token_id", Json());
  if (in_config.is_number_integer()) return in_config.get<int64_t>();
  const config::DataConfig& data = config.data;
  const auto id = tokenizer.language_id(data.lang.empty() ? data.target_lang : data.lang);
  if (id) return *id;
  throw ConfigError(
      "generation_config.json: found no decoder_start_token_id, expected the token that answers "
      "follow; add it, or leave predict_with_generate out");
}

int64_t require_token(int64_t start, const Trainee& trainee) {
  if (start >= 0 && start < trainee.model->vocab_size()) return start;
  throw FormatError(
      "{}: found bos_token_id = {}, with which answers begin, expected a token of the vocabulary "
      "of "
      "{}; fix the file, or name decoder_start_token_id in it",
      trainee.generation.source, start, trainee.model->vocab_size());
}

// The start belongs to the text where its token is no special one, as in the reference.
std::vector<int32_t> behind(int64_t start, std::vector<int32_t> answer) {
  answer.insert(answer.begin(), static_cast<int32_t>(start));
  return answer;
}

std::string trimmed_text(std::span<const int32_t> ids, const text::Tokenizer& tokenizer) {
  const std::string text = tokenizer.decode(ids);
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// As the settings bound an answer. The reference counts the start token as part of its length.
int64_t max_set_tokens(const config::RunConfig& config) {
  return config.train.generation_max_length.value_or(
             std::max<int64_t>(config.data.max_target_length, 2)) -
         1;
}

}  // namespace

int64_t max_answer_tokens(const config::RunConfig& config,
                          const generate::GenerationConfig& generation) {
  if (!config.train.predict_with_generate) return 0;
  if (!generation.max_new_tokens) return max_set_tokens(config);
  if (*generation.max_new_tokens >= 1) return *generation.max_new_tokens;
  throw ConfigError("{}: found max_new_tokens {}, expected at least 1; correct the file",
                    generation.source, *generation.max_new_tokens);
}

generate::BeamSettings answer_beams(const config::RunConfig& config,
                                    const generate::GenerationConfig& generation) {
  generate::BeamSettings beams = generation.beams;
  beams.count = config.train.generation_num_beams.value_or(beams.count);
  return beams;
}

static void require_start(const generate::GenerationConfig& file, const Json& model_config) {
  const Json size = model_config.value("vocab_size", Json());
  if (!file.decoder_start_id || !size.is_number_integer()) return;
  const int64_t start = *file.decoder_start_id;
  if (start >= 0 && start < size.get<int64_t>()) return;
  throw FormatError(
      "{}: found decoder_start_token_id = {}, expected a token of the vocabulary of {}; fix the "
      "file",
      file.source, start, size.get<int64_t>());
}

// Before the first evaluation fails on it.
static void require_answer_positions(const config::RunConfig& config,
                                     const generate::GenerationConfig& file,
                                     const Json& model_config) {
  const auto table = models::position_table(model_config);
  const int64_t most = max_answer_tokens(config, file);
  if (!table || most <= table->num_positions) return;
  throw ConfigError(
      "{}: found answers of up to {}, expected at most {}, for which the model has positions ({}); "
      "lower it",
      file.max_new_tokens                  ? file.source + ": max_new_tokens"
      : config.train.generation_max_length ? "generation_max_length"
                                           : "max_target_length",
      counted(most, "token"), table->num_positions, table->key);
}

std::vector<std::string> answer_warnings(const config::RunConfig& config) {
  if (!config.train.predict_with_generate) return {};
  const generate::GenerationConfig file = load_generation_config(config.model);
  const Json model_config = load_model_config(config.model, /*alone=*/true);
  require_start(file, model_config);
  require_answer_positions(config, file, model_config);
  std::vector<std::string> warnings;
  for (const std::string& note : file.notes) warnings.push_back("warning: " + note);
  const auto warn = [&](const char* key, const std::string& value) {
    warnings.push_back(
        fmt::format("warning: {}: {} {} is not applied here; evaluations take the likeliest "
                    "tokens",
                    file.source, key, value));
  };
  if (file.do_sample.value_or(false)) warn("do_sample", "true");
  const double penalty = file.repetition_penalty.value_or(1.0);
  if (penalty != 1.0) warn("repetition_penalty", fmt::format("{}", penalty));
  const int64_t most = max_answer_tokens(config, file);
  if (most != max_set_tokens(config)) {
    warnings.push_back(fmt::format(
        "warning: {}: max_new_tokens {} goes before {}, as in transformers; "
        "evaluations' answers have {} at most",
        file.source, most,
        config.train.generation_max_length ? "generation_max_length" : "max_target_length",
        counted(most, "token")));
  }
  return warnings;
}

std::optional<double> exact_answers(const data::TokenStore& dataset,
                                    const config::RunConfig& config,
                                    const text::Tokenizer& tokenizer, Trainee& trainee,
                                    const StopRequest& is_asked_to_stop) {
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler = evaluation_sampler(config, dataset, world.size());
  const AnswerOptions options{
      max_answer_tokens(config, trainee.generation),
      require_token(start_of(config, tokenizer, trainee), trainee),
      eos_ids_of(trainee, tokenizer),
      first_token(config, tokenizer, trainee),
      forced_token(trainee.generation.forced_eos_ids, "forced_eos_token_id", trainee),
      banned_ids_of(trainee, tokenizer),
      answer_beams(config, trainee.generation),
      trainee.generation.no_repeat_ngram_size,
      trainee.generation.min_new_tokens,
      is_asked_to_stop};
  at::Tensor counts = at::zeros({2}, at::kDouble);  // exact answers, rows
  double* count = counts.data_ptr<double>();
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    const data::EvalBatch rows = sampler.batch(world.rank(), i);
    const nn::Batch batch =
        to_tensors(data::collate_rows(dataset, rows.rows, trainee.model->decoder_start_id()),
                   trainee.store->options().device);
    const auto answers = decode_answers(batch, options, trainee);
    if (!answers) return std::nullopt;
    for (int64_t r = 0; r < rows.num_real; ++r) {
      const data::ExampleView row = dataset[static_cast<size_t>(rows.rows[static_cast<size_t>(r)])];
      const auto target = row.ids.subspan(static_cast<size_t>(row.lengths[0]));
      const std::vector<int32_t> answer = behind(options.start, (*answers)[static_cast<size_t>(r)]);
      count[0] += trimmed_text(answer, tokenizer) == trimmed_text(target, tokenizer);
      count[1] += 1;
    }
  }
  world.all_reduce(counts)->wait();
  return count[0] / std::max(count[1], 1.0);
}

}  // namespace strata::train
