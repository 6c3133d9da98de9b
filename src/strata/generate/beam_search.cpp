#include "strata/generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ATen.h>

namespace strata::generate {
namespace {

// Of what is no answer, and what is taken from the score of what must not be chosen. The
// reference's: what sums of it tie with decides where all else has run out.
constexpr double kNever = -1e9;

at::Tensor penalty(const at::Tensor& applies) { return applies.to(at::kFloat) * kNever; }

std::vector<int32_t> with(std::vector<int32_t> answer, int32_t token) {
  answer.push_back(token);
  return answer;
}

}  // namespace

// What a step chooses among, [D, K] each.
struct BeamSearch::Grown {
  at::Tensor scores;
  at::Tensor beams, tokens;  // int64, contiguous
  at::Tensor ends;           // bool

  int64_t beam(int64_t document, int64_t place) const {
    return beams.const_data_ptr<int64_t>()[document * beams.size(1) + place];
  }
  int32_t token(int64_t document, int64_t place) const {
    return static_cast<int32_t>(
        tokens.const_data_ptr<int64_t>()[document * tokens.size(1) + place]);
  }
};

BeamSearch::BeamSearch(int64_t documents, const BeamSettings& settings, int64_t max_tokens,
                       std::vector<int32_t> eos_ids)
    : documents_(documents),
      settings_(settings),
      max_tokens_(max_tokens),
      eos_ids_(std::move(eos_ids)) {
  const int64_t beams = settings_.count;
  const std::set<int32_t> ends(eos_ids_.begin(), eos_ids_.end());
  num_candidates_ = std::max<int64_t>(2, 1 + static_cast<int64_t>(ends.size())) * beams;
  // All go on from the first one's start, so that the others' are no second choice of its tokens.
  scores_ = at::full({documents, beams}, kNever, at::kFloat);
  scores_.select(1, 0).zero_();
  finished_scores_ = at::full({documents, beams}, kNever, at::kFloat);
  is_finished_ = at::zeros({documents, beams}, at::kBool);
  may_improve_ = at::ones({documents, 1}, at::kBool);
  living_.resize(static_cast<size_t>(documents * beams));
  finished_.resize(living_.size());
  parents_.resize(living_.size());
}

BeamSearch::Grown BeamSearch::grow(const nn::BeamCandidates& best) const {
  Grown grown{best.scores, best.beams.contiguous(), best.tokens.contiguous(),
              at::full_like(best.tokens, num_tokens_ + 1 >= max_tokens_, at::kBool)};
  for (const int32_t id : eos_ids_) grown.ends.logical_or_(grown.tokens.eq(id));
  return grown;
}

void BeamSearch::choose_living(const Grown& grown) {
  const int64_t beams = settings_.count;
  const at::Tensor running = grown.scores + penalty(grown.ends);
  const at::Tensor chosen = std::get<1>(at::topk(running, beams, 1));
  scores_ = running.gather(1, chosen);
  std::vector<std::vector<int32_t>> living;
  const int64_t* place = chosen.const_data_ptr<int64_t>();
  for (int64_t d = 0; d < documents_; ++d) {
    for (int64_t b = 0; b < beams; ++b, ++place) {
      const int64_t parent = d * beams + grown.beam(d, *place);
      parents_[static_cast<size_t>(d * beams + b)] = parent;
      living.push_back(with(living_[static_cast<size_t>(parent)], grown.token(d, *place)));
    }
  }
  living_ = std::move(living);
}

// Only the likeliest continuations, as many as there are beams, may be answers: the others are
// there to go on.
void BeamSearch::keep_finished(const Grown& grown) {
  const int64_t beams = settings_.count;
  at::Tensor ends = grown.ends.clone();
  ends.narrow(1, beams, ends.size(1) - beams).fill_(false);
  at::Tensor scores =
      grown.scores / std::pow(static_cast<double>(num_tokens_ + 1), settings_.length_penalty);
  if (settings_.early_stopping == EarlyStopping::kWhenFull) {
    scores += penalty(is_finished_.all(1, /*keepdim=*/true));
  }
  scores += penalty(may_improve_.logical_not());
  scores += penalty(ends.logical_not());
  const auto [best, chosen] = at::topk(at::cat({finished_scores_, scores}, 1), beams, 1);
  std::vector<std::vector<int32_t>> finished;
  const int64_t* place = chosen.const_data_ptr<int64_t>();
  for (int64_t d = 0; d < documents_; ++d) {
    for (int64_t b = 0; b < beams; ++b, ++place) {
      const int64_t added = *place - beams;
      const int64_t row = d * beams + (added < 0 ? *place : grown.beam(d, added));
      finished.push_back(added < 0
                             ? finished_[static_cast<size_t>(row)]
                             : with(living_[static_cast<size_t>(row)], grown.token(d, added)));
    }
  }
  finished_ = std::move(finished);
  finished_scores_ = best;
  is_finished_ = at::cat({is_finished_, ends}, 1).gather(1, chosen);
}

// Whether what lives may still be better than the worst answer that there is.
void BeamSearch::look_ahead() {
  const bool may_be_long =
      settings_.early_stopping == EarlyStopping::kNever && settings_.length_penalty > 0;
  const auto length = static_cast<double>(may_be_long ? max_tokens_ : num_tokens_);
  const at::Tensor hoped = scores_.narrow(1, 0, 1) / std::pow(length, settings_.length_penalty);
  const at::Tensor worst = at::where(is_finished_, finished_scores_.amin(1, /*keepdim=*/true),
                                     at::full({}, kNever, at::kFloat));
  may_improve_ = may_improve_.logical_and(hoped.gt(worst).any(1, /*keepdim=*/true));
}

void BeamSearch::advance(const nn::BeamCandidates& best) {
  const Grown grown = grow(best);
  keep_finished(grown);  // of what has lived until now
  choose_living(grown);
  ++num_tokens_;
  look_ahead();
}

int64_t BeamSearch::num_open() const {
  if (num_tokens_ >= max_tokens_) return 0;
  at::Tensor is_open = may_improve_;
  if (settings_.early_stopping == EarlyStopping::kWhenFull) {
    is_open = is_open.logical_and(is_finished_.all(1, /*keepdim=*/true).logical_not());
  }
  return is_open.sum().item<int64_t>();
}

std::vector<std::vector<int32_t>> BeamSearch::answers() const {
  std::vector<std::vector<int32_t>> best;
  for (int64_t d = 0; d < documents_; ++d) {
    best.push_back(finished_[static_cast<size_t>(d * settings_.count)]);
  }
  return best;
}

}  // namespace strata::generate
