#include "strata/train/loop/figures.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/comm/agreement.h"

namespace strata::train {
namespace {

// Of a log-ratio, as far as fp32 tells its two log-probabilities apart: TRL adds them up in it. A
// model that is still its own reference differs from it in the last bits of products of other
// batches, which is no preference.
double told_apart(double log_prob, double reference) {
  const double difference = log_prob - reference;
  const double half_step = std::ldexp(std::abs(reference), -24);
  return std::abs(difference) <= half_step ? 0 : difference;
}

// Figures of pairs, with a reference or without one.
struct PairFigures {
  double correct = 0, chosen_tokens = 0, wins = 0, count = 0;
  // By kind: the preferred answers, the others.
  double rewards[2] = {0, 0}, log_probs[2] = {0, 0};

  // `chosen`: the preferred answer's document.
  void add(const nn::DocumentSums& chosen, const double (&own_rewards)[2],
           const double (&own_log_probs)[2], bool wins_pair) {
    for (size_t i = 0; i < 2; ++i) {
      rewards[i] += own_rewards[i];
      log_probs[i] += own_log_probs[i];
    }
    wins += wins_pair ? 1 : 0;
    correct += chosen.correct;
    chosen_tokens += static_cast<double>(chosen.tokens);
    ++count;
  }

  Figures figures(const nn::LossSums& sums) const {
    return {{"entropy", sums.entropy, static_cast<double>(sums.tokens)},
            {"mean_token_accuracy", correct, chosen_tokens},
            {"rewards/chosen", rewards[0], count},
            {"rewards/rejected", rewards[1], count},
            {"rewards/accuracies", wins, count},
            {"rewards/margins", rewards[0] - rewards[1], count},
            {"logps/chosen", log_probs[0], count},
            {"logps/rejected", log_probs[1], count}};
  }
};

}  // namespace

Figures figures_of(const nn::LossSums& sums) {
  const auto tokens = static_cast<double>(sums.tokens);
  return {{"entropy", sums.entropy, tokens}, {"mean_token_accuracy", sums.correct, tokens}};
}

Figures figures_of(const nn::LossSums& sums, const nn::PairPreference& preference) {
  PairFigures pairs;
  const std::vector<nn::DocumentSums>& documents = preference.documents;
  for (size_t d = 0; d + 1 < documents.size(); d += 2) {
    double ratio[2], rewards[2], log_probs[2];
    for (size_t i = 0; i < 2; ++i) {
      log_probs[i] = preference.weighted_log_prob(documents[d + i]);
      const double reference = preference.reference[d + i];
      ratio[i] = told_apart(log_probs[i], reference);
      rewards[i] = preference.options.beta * (log_probs[i] - reference);
    }
    pairs.add(documents[d], rewards, log_probs, ratio[0] > ratio[1]);
  }
  return pairs.figures(sums);
}

Figures figures_of(const nn::LossSums& sums, const nn::ReferenceFreePreference& preference) {
  double nll = 0, log_odds = 0, log_odds_ratios = 0;
  PairFigures pairs;
  const std::vector<nn::DocumentSums>& documents = preference.documents;
  const bool has_odds = preference.options.loss == "odds_ratio";
  for (size_t d = 0; d + 1 < documents.size(); d += 2) {
    const double rewards[2] = {preference.reward(d), preference.reward(d + 1)};
    const double log_probs[2] = {preference.log_prob(d), preference.log_prob(d + 1)};
    pairs.add(documents[d], rewards, log_probs, rewards[0] > rewards[1]);
    nll -= documents[d].log_prob;
    if (!has_odds) continue;
    log_odds += preference.log_odds(d / 2);
    log_odds_ratios += preference.log_odds_ratio(d / 2);
  }
  Figures figures = pairs.figures(sums);
  figures.push_back({"nll_loss", nll, pairs.chosen_tokens});
  if (has_odds) {
    figures.push_back({"log_odds_ratio", log_odds_ratios, pairs.count});
    figures.push_back({"log_odds_chosen", log_odds, pairs.count});
  }
  return figures;
}

Figures figures_of(const nn::LossSums& sums, const nn::RatedPreference& answers) {
  // By kind: the desirable answers, the others.
  double rewards[2] = {0, 0}, log_probs[2] = {0, 0}, logits[2] = {0, 0};
  double tokens[2] = {0, 0}, counts[2] = {0, 0};
  for (size_t d = 0; d < answers.documents.size(); ++d) {
    const nn::DocumentSums& document = answers.documents[d];
    const size_t i = answers.are_desirable[d] ? 0 : 1;
    rewards[i] += answers.options.beta * (document.log_prob - answers.reference[d]);
    log_probs[i] += document.log_prob;
    logits[i] += document.mean_logits;
    tokens[i] += static_cast<double>(document.tokens);
    ++counts[i];
  }
  const auto one_of = [](const char* name, double sum, double weight) {
    return Figure{.name = name, .sum = sum, .weight = weight, .may_be_absent = true};
  };
  return {{"entropy", sums.entropy, static_cast<double>(sums.tokens)},
          {"kl", answers.divergence, 1},
          one_of("logits/chosen", logits[0], tokens[0]),
          one_of("logits/rejected", logits[1], tokens[1]),
          one_of("rewards/chosen", rewards[0], counts[0]),
          one_of("logps/chosen", log_probs[0], counts[0]),
          one_of("rewards/rejected", rewards[1], counts[1]),
          one_of("logps/rejected", log_probs[1], counts[1]),
          {.name = "rewards/margins",
           .sum = rewards[0],
           .weight = counts[0],
           .over_ranks = OverRanks::kDifference,
           .other_sum = rewards[1],
           .other_weight = counts[1],
           .may_be_absent = true}};
}

Figures figures_of(const nn::DocumentTask& rewards) {
  const std::vector<double>& values = rewards.values;
  const auto count = static_cast<double>(values.size());
  double sum = 0, wins = 0, margins = 0;
  for (size_t d = 0; d + 1 < values.size(); d += 2) {
    sum += values[d] + values[d + 1];
    wins += values[d] > values[d + 1] ? 1 : 0;
    margins += values[d] - values[d + 1];
  }
  const auto extreme = [&](const char* name, double value, OverRanks over_ranks) {
    return Figure{.name = name, .sum = value, .weight = 1, .over_ranks = over_ranks};
  };
  return {extreme("min_reward", std::ranges::min(values), OverRanks::kLowest),
          {"mean_reward", sum, count},
          extreme("max_reward", std::ranges::max(values), OverRanks::kHighest),
          {"accuracy", wins, count / 2},
          {"margin", margins, count / 2}};
}

Figure figure_of(nn::ExpertBalance& balance, double weight) {
  return {.name = "aux_loss", .sum = balance.loss(), .weight = 1, .loss_weight = weight};
}

double loss_in_figures(const std::vector<Figures>& figures) {
  double loss = 0;
  for (size_t i = 0; !figures.empty() && i < figures[0].size(); ++i) {
    const double weight = figures[0][i].loss_weight;
    if (weight == 0) continue;
    double sum = 0;
    for (const Figures& of_one : figures) sum += of_one[i].mean();
    loss += weight * sum / static_cast<double>(figures.size());
  }
  return loss;
}

void sum_over_ranks(comm::Group& world, std::vector<double>& values,
                    std::vector<Figures>& figures) {
  std::vector<double> sums = values;
  const auto ranks = static_cast<size_t>(world.size());
  for (const Figures& of_one : figures) {
    for (const Figure& figure : of_one) {
      if (figure.over_ranks == OverRanks::kMean) {
        sums.insert(sums.end(), {figure.sum, figure.weight});
      } else if (figure.over_ranks == OverRanks::kDifference) {
        sums.insert(sums.end(), {figure.sum, figure.weight, figure.other_sum, figure.other_weight});
      } else {
        // A place for each rank.
        sums.resize(sums.size() + ranks);
        sums[sums.size() - ranks + static_cast<size_t>(world.rank())] = figure.sum;
      }
    }
  }
  comm::sum_over_ranks(world, sums);
  std::copy_n(sums.begin(), values.size(), values.begin());
  auto next = sums.begin() + static_cast<int64_t>(values.size());
  for (Figures& of_one : figures) {
    for (Figure& figure : of_one) {
      if (figure.over_ranks == OverRanks::kMean || figure.over_ranks == OverRanks::kDifference) {
        figure.sum = *next++;
        figure.weight = *next++;
        if (figure.over_ranks == OverRanks::kMean) continue;
        figure.other_sum = *next++;
        figure.other_weight = *next++;
        continue;
      }
      const auto end = next + static_cast<int64_t>(ranks);
      figure.sum = figure.over_ranks == OverRanks::kLowest ? *std::min_element(next, end)
                                                           : *std::max_element(next, end);
      next = end;
    }
  }
}

void MeanFigures::add(const Figures& figures) {
  for (const Figure& figure : figures) {
    if (figure.is_absent()) continue;
    // By name: a file keeps them in another order.
    auto sum = std::ranges::find(sums_, figure.name, &Figure::name);
    if (sum == sums_.end()) sum = sums_.insert(sum, {figure.name});
    sum->sum += figure.mean();
    ++sum->weight;
  }
  ++num_micro_steps_;
}

void MeanFigures::write_to(Json& values, const std::string& prefix, std::string_view ending) const {
  for (const Figure& figure : sums_) {
    values[fmt::format("{}{}{}", prefix, figure.name, ending)] = figure.mean();
  }
}

Json MeanFigures::state() const {
  Json names = Json::object(), counts = Json::object();
  for (const Figure& figure : sums_) {
    names[figure.name] = figure.sum;
    if (figure.weight != static_cast<double>(num_micro_steps_)) counts[figure.name] = figure.weight;
  }
  Json state{{"figures", names}, {"micro_steps", num_micro_steps_}};
  if (!counts.empty()) state["counts"] = counts;  // where they are not all micro-steps
  return state;
}

void MeanFigures::load(const Json& state) {
  sums_.clear();
  num_micro_steps_ = state.at("micro_steps").get<int64_t>();
  if (num_micro_steps_ == 0) return;
  const auto all = static_cast<double>(num_micro_steps_);
  const Json counts = state.contains("counts") ? state.at("counts") : Json::object();
  if (!state.contains("figures")) {
    sums_ = {{"entropy", state.at("entropy").get<double>(), all},
             {"mean_token_accuracy", state.at("accuracy").get<double>(), all}};
    return;
  }
  for (const auto& [name, sum] : state.at("figures").items()) {
    const double count = counts.contains(name) ? counts.at(name).get<double>() : all;
    sums_.push_back({name, sum.get<double>(), count});
  }
}

}  // namespace strata::train
