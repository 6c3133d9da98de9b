#include "strata/train/loop/answers.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/nn/attention/decoder_cache.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/batch_tensors.h"

namespace strata::train {
namespace {

// One token of each document.
nn::Batch next_batch(std::vector<int64_t> ids, int64_t position,
                     std::shared_ptr<const nn::Batch> source) {
  const auto documents = static_cast<int64_t>(ids.size());
  nn::Batch batch;
  batch.ids = at::tensor(ids, at::kLong).to(source->ids.device());
  batch.positions = at::full_like(batch.ids, position);
  batch.token_keys = batch.positions;
  for (int64_t d = 0; d <= documents; ++d) batch.offsets.push_back(d);
  batch.source = std::move(source);
  return batch;
}

// config.json's, an id or a list of them; else the tokenizer's.
std::vector<int32_t> eos_ids_of(const Json& model_config, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  const auto entry = model_config.find("eos_token_id");
  if (entry != model_config.end() && entry->is_number_integer()) ids = {entry->get<int32_t>()};
  if (entry != model_config.end() && entry->is_array()) {
    for (const Json& id : *entry) {
      if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
    }
  }
  if (ids.empty() && tokenizer.eos_id()) ids = {*tokenizer.eos_id()};
  return ids;
}

std::string trimmed_text(std::span<const int32_t> ids, const text::Tokenizer& tokenizer) {
  const std::string text = tokenizer.decode(ids);
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

int64_t max_answer_tokens(const config::RunConfig& config) {
  if (!config.train.predict_with_generate) return 0;
  // As the reference counts: the start token is part of the length.
  return config.train.generation_max_length.value_or(
             std::max<int64_t>(config.data.max_target_length, 2)) -
         1;
}

std::optional<std::vector<std::vector<int32_t>>> greedy_answers(const nn::Batch& batch,
                                                                const AnswerOptions& options,
                                                                Trainee& trainee) {
  comm::Group& world = *trainee.store->mesh().world;
  const size_t documents = batch.source->offsets.size() - 1;
  const int64_t start = trainee.model->decoder_start_id().value();
  std::vector<std::vector<int32_t>> answers(documents);
  std::vector<bool> is_done(documents, false);
  std::vector<int64_t> ids(documents, start);
  nn::DecoderCache cache(static_cast<int64_t>(trainee.model->blocks().size()) -
                         trainee.model->decoder_begin() - 2);
  at::Tensor logits;
  nn::ForwardContext context;
  context.generation.decoder_cache = &cache;
  context.head.next_logits = &logits;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const nn::Batch next = next_batch(ids, i, batch.source);
    if (i == 0) {
      trainee.executor->evaluate(next, context);
    } else {
      trainee.executor->decode(next, context);
    }
    ++cache.length;
    const at::Tensor chosen = logits.argmax(1).cpu();
    double num_open = 0;
    for (size_t d = 0; d < documents; ++d) {
      const auto id = static_cast<int32_t>(chosen.data_ptr<int64_t>()[d]);
      is_done[d] = is_done[d] || std::ranges::find(options.eos_ids, id) != options.eos_ids.end();
      // What a finished document reads changes nothing.
      ids[d] = is_done[d] ? start : id;
      if (is_done[d]) continue;
      answers[d].push_back(id);
      ++num_open;
    }
    // Units are gathered by all ranks together, until the last answer of any has ended.
    const bool is_asked = options.is_asked_to_stop && options.is_asked_to_stop();
    at::Tensor counts = at::tensor({num_open, is_asked ? 1.0 : 0.0}, at::kDouble);
    world.all_reduce(counts)->wait();
    const double* count = counts.const_data_ptr<double>();
    if (count[1] > 0) return std::nullopt;
    if (count[0] == 0) break;
  }
  return answers;
}

std::optional<double> exact_answers(const data::TokenStore& dataset,
                                    const config::RunConfig& config,
                                    const text::Tokenizer& tokenizer, Trainee& trainee,
                                    const StopRequest& is_asked_to_stop) {
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler = evaluation_sampler(config, dataset, world.size());
  const AnswerOptions options{max_answer_tokens(config),
                              eos_ids_of(trainee.model_config, tokenizer), is_asked_to_stop};
  at::Tensor counts = at::zeros({2}, at::kDouble);  // exact answers, rows
  double* count = counts.data_ptr<double>();
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    const data::EvalBatch rows = sampler.batch(world.rank(), i);
    const nn::Batch batch =
        to_tensors(data::collate_rows(dataset, rows.rows, trainee.model->decoder_start_id()),
                   trainee.store->options().device);
    const auto answers = greedy_answers(batch, options, trainee);
    if (!answers) return std::nullopt;
    for (int64_t r = 0; r < rows.num_real; ++r) {
      const data::ExampleView row = dataset[static_cast<size_t>(rows.rows[static_cast<size_t>(r)])];
      const auto target = row.ids.subspan(static_cast<size_t>(row.lengths[0]));
      count[0] += trimmed_text((*answers)[static_cast<size_t>(r)], tokenizer) ==
                  trimmed_text(target, tokenizer);
      count[1] += 1;
    }
  }
  world.all_reduce(counts)->wait();
  return count[0] / std::max(count[1], 1.0);
}

}  // namespace strata::train
