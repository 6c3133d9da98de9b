#include "strata/train/loop/decode_answers.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>

#include "strata/generate/beam_search.h"
#include "strata/nn/attention/decoder_cache.h"
#include "strata/nn/beam_candidates.h"

namespace strata::train {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

// One token of each answer, of which `ids` has as many of each document as of the others.
nn::Batch next_batch(const std::vector<int64_t>& ids, int64_t position,
                     std::shared_ptr<const nn::Batch> source) {
  const auto answers = static_cast<int64_t>(ids.size());
  nn::Batch batch;
  batch.ids = at::tensor(ids, at::kLong).to(source->ids.device());
  batch.positions = at::full_like(batch.ids, position);
  batch.token_keys = batch.positions;
  for (int64_t d = 0; d <= answers; ++d) batch.offsets.push_back(d);
  batch.source = std::move(source);
  return batch;
}

// The model, one token of each answer after the other.
class Decoder {
 public:
  Decoder(std::shared_ptr<const nn::Batch> source, Trainee& trainee)
      : source_(std::move(source)),
        trainee_(trainee),
        cache_(static_cast<int64_t>(trainee.model->blocks().size()) -
               trainee.model->decoder_begin() - 2) {}

  // The logits after these tokens, fp32 [answers, vocab].
  at::Tensor step(const std::vector<int64_t>& ids) {
    const nn::Batch next = next_batch(ids, cache_.length, source_);
    at::Tensor logits;
    nn::ForwardContext context;
    context.generation.decoder_cache = &cache_;
    context.head.next_logits = &logits;
    if (cache_.length == 0) {
      trainee_.executor->evaluate(next, context);
    } else {
      trainee_.executor->decode(next, context);
    }
    ++cache_.length;
    return logits;
  }

  // Each answer goes on from another one's tokens.
  void follow(const std::vector<int64_t>& parents) {
    cache_.parents = at::tensor(parents, at::kLong).to(device());
  }

  at::Device device() const { return source_->ids.device(); }

 private:
  const std::shared_ptr<const nn::Batch> source_;
  Trainee& trainee_;
  nn::DecoderCache cache_;
};

// Units are gathered by all ranks together, until the last answer of any has ended. Nothing: a rank
// was asked to stop.
std::optional<bool> is_any_open(int64_t num_open, const AnswerOptions& options, Trainee& trainee) {
  const bool is_asked = options.is_asked_to_stop && options.is_asked_to_stop();
  at::Tensor counts =
      at::tensor({static_cast<double>(num_open), is_asked ? 1.0 : 0.0}, at::kDouble);
  trainee.store->mesh().world->all_reduce(counts)->wait();
  const double* count = counts.const_data_ptr<double>();
  if (count[1] > 0) return std::nullopt;
  return count[0] > 0;
}

int64_t forced_token(const AnswerOptions& options, int64_t i) {
  const bool is_last = i + 1 == options.max_new_tokens;
  if (is_last && options.forced_last >= 0) return options.forced_last;
  return i == 0 ? options.forced_first : -1;
}

// The tokens with which `answer`, behind `start`, would have a run of `size` tokens twice.
void append_repeating(const std::vector<int32_t>& answer, int64_t start, int64_t size,
                      std::vector<int64_t>& tokens) {
  std::vector<int64_t> text{start};
  text.insert(text.end(), answer.begin(), answer.end());
  const auto length = static_cast<int64_t>(text.size());
  if (length < size) return;
  const auto last = text.end() - (size - 1);
  for (auto run = text.begin(); run + size <= text.end(); ++run) {
    if (std::equal(last, text.end(), run)) tokens.push_back(*(run + (size - 1)));
  }
}

void exclude_repeating(at::Tensor& scores, const AnswerOptions& options, const Answers& answers) {
  std::vector<int64_t> places, tokens;
  for (size_t row = 0; row < answers.size(); ++row) {
    tokens.clear();
    append_repeating(answers[row], options.start, options.no_repeat_ngram_size, tokens);
    for (const int64_t token : tokens) {
      places.push_back(static_cast<int64_t>(row) * scores.size(1) + token);
    }
  }
  if (places.empty()) return;
  scores.view(-1).index_fill_(0, at::tensor(places, at::kLong).to(scores.device()), kExcluded);
}

// Takes out of `scores` [answers, vocab], logits or log-probabilities, what the options exclude as
// the token `i` of `answers`.
void exclude(at::Tensor& scores, const AnswerOptions& options, const Answers& answers, int64_t i) {
  if (const int64_t forced = forced_token(options, i); forced >= 0) {
    scores.fill_(kExcluded);
    scores.select(1, forced).fill_(0);
    return;
  }
  if (options.no_repeat_ngram_size > 0) exclude_repeating(scores, options, answers);
  const auto exclude_ids = [&](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      if (id >= 0 && id < scores.size(1)) scores.select(1, id).fill_(kExcluded);
    }
  };
  exclude_ids(options.banned_ids);
  if (i < options.min_new_tokens) exclude_ids(options.eos_ids);
}

std::optional<Answers> greedy_answers(const nn::Batch& batch, const AnswerOptions& options,
                                      Trainee& trainee) {
  const size_t documents = batch.source->offsets.size() - 1;
  Answers answers(documents);
  std::vector<bool> is_done(documents, false);
  std::vector<int64_t> ids(documents, options.start);
  Decoder decoder(batch.source, trainee);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    at::Tensor logits = decoder.step(ids);
    exclude(logits, options, answers, i);
    const at::Tensor chosen = logits.argmax(1).cpu();
    int64_t num_open = 0;
    for (size_t d = 0; d < documents; ++d) {
      const auto id = static_cast<int32_t>(chosen.const_data_ptr<int64_t>()[d]);
      if (!is_done[d]) answers[d].push_back(id);
      is_done[d] = is_done[d] || std::ranges::find(options.eos_ids, id) != options.eos_ids.end();
      // What a finished document reads changes nothing.
      ids[d] = is_done[d] ? options.start : id;
      num_open += is_done[d] ? 0 : 1;
    }
    const std::optional<bool> goes_on = is_any_open(num_open, options, trainee);
    if (!goes_on) return std::nullopt;
    if (!*goes_on) break;
  }
  return answers;
}

std::optional<Answers> searched_answers(const nn::Batch& batch, const AnswerOptions& options,
                                        Trainee& trainee) {
  const auto documents = static_cast<int64_t>(batch.source->offsets.size()) - 1;
  generate::BeamSearch search(documents, options.beams, options.max_new_tokens, options.eos_ids);
  std::vector<int64_t> ids(search.living().size(), options.start);
  Decoder decoder(batch.source, trainee);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    at::Tensor logits = decoder.step(ids);
    const int64_t choices = options.beams.count * logits.size(1);
    const nn::BeamCandidates best =
        nn::beam_candidates(logits, search.scores().to(decoder.device()),
                            std::min(search.num_candidates(), choices), [&](at::Tensor& scores) {
                              exclude(scores, options, search.living(), i);
                              if (options.beams.renormalize_logits) {
                                scores.sub_(scores.logsumexp(1, /*keepdim=*/true));
                              }
                            });
    search.advance({best.scores.cpu(), best.beams.cpu(), best.tokens.cpu()});
    decoder.follow(search.parents());
    std::ranges::transform(search.living(), ids.begin(),
                           [](const std::vector<int32_t>& answer) { return answer.back(); });
    const std::optional<bool> goes_on = is_any_open(search.num_open(), options, trainee);
    if (!goes_on) return std::nullopt;
    if (!*goes_on) break;
  }
  return search.answers();
}

}  // namespace

std::optional<Answers> decode_answers(const nn::Batch& batch, const AnswerOptions& options,
                                      Trainee& trainee) {
  return options.beams.count > 1 ? searched_answers(batch, options, trainee)
                                 : greedy_answers(batch, options, trainee);
}

}  // namespace strata::train
