#include "strata/train/recipes/classify.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/config/glue_tasks.h"
#include "strata/nn/document_loss.h"
#include "strata/train/labels.h"
#include "strata/train/loop/label_figures.h"
#include "strata/train/recipes/read_tokens.h"

namespace strata::train {
namespace {

nn::DocumentLoss loss_of(config::LabelProblem problem) {
  return problem == config::LabelProblem::kNumbers  ? nn::DocumentLoss::kNumbers
         : problem == config::LabelProblem::kLabels ? nn::DocumentLoss::kLabels
                                                    : nn::DocumentLoss::kClasses;
}

// Where an evaluation's documents stand in their set, which is so large; 0: nobody asks.
struct Places {
  std::vector<int64_t> rows = {};
  size_t set_size = 0;
};

class ClassifyObjective final : public Objective {
 public:
  ClassifyObjective(nn::DocumentTask task, Split split, Places places)
      : task_(std::move(task)), split_(split), places_(std::move(places)) {}
  void ask(nn::ForwardContext& context) override { context.head.documents = &task_; }
  Figures figures(const nn::LossSums&) const override {
    return split_ == Split::kTrain ? label_figures_of_step(task_) : Figures{};
  }
  std::vector<double> tally() const override {
    if (split_ == Split::kTrain) return {};
    return places_.set_size == 0 ? tally_of(task_)
                                 : placed_tally_of(task_, places_.rows, places_.set_size);
  }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(num_counted(task_));
  }

 private:
  nn::DocumentTask task_;
  Split split_;
  Places places_;
};

class Classify final : public Recipe {
  struct Set {
    std::vector<int64_t> classes = {};  // of its labels
    size_t size = 0;
  };

 public:
  explicit Classify(const BeforeTraining& before)
      : loss_(loss_of(before.config.classify.problem)),
        num_labels_(before.config.classify.label_names.size()),
        figures_{.names = config::label_figures_of(before.config.classify),
                 .is_of_class_1 = !before.config.classify.task_name.empty()},
        reads_first_(before.trainee.model->reads_first_token()),
        pad_id_(reads_first_ ? -1 : require_pad_id(*before.datasets.tokenizer)) {
    const std::vector<std::string>& names = before.config.classify.label_names;
    const auto add = [&](Split split, const data::TokenStore& set) {
      Set& made = sets_[static_cast<size_t>(split)];
      made.size = set.size();
      if (loss_ != nn::DocumentLoss::kNumbers) made.classes = classes_of(set.stats(), names);
    };
    add(Split::kTrain, before.datasets.train);
    if (before.datasets.eval) add(Split::kEval, *before.datasets.eval);
    if (before.datasets.second_eval) add(Split::kSecondEval, *before.datasets.second_eval);
  }

  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.rows.size())};
  }

  std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split split,
                                       const LossCounts&) const override {
    nn::DocumentTask task{.loss = loss_,
                          .rows = reads_first_ ? first_tokens(batch) : last_tokens(batch, pad_id_),
                          .num_counted = batch.num_real_rows};
    const Set& set = sets_[static_cast<size_t>(split)];
    for (size_t row = 0; row < batch.rows.size(); ++row) {
      // Of lists without a label nothing is there.
      append_targets(batch.row_targets.empty() ? std::vector<float>{} : batch.row_targets[row],
                     set.classes, task.targets);
    }
    Places places;
    if (split != Split::kTrain && figures_.are_placed()) places = {batch.rows, set.size};
    return std::make_unique<ClassifyObjective>(std::move(task), split, std::move(places));
  }

 private:
  void append_targets(const std::vector<float>& row, const std::vector<int64_t>& classes,
                      std::vector<float>& targets) const {
    const auto class_of = [&](float number) { return classes.at(static_cast<size_t>(number)); };
    if (loss_ == nn::DocumentLoss::kLabels) {
      targets.resize(targets.size() + num_labels_, 0.0f);
      const size_t first = targets.size() - num_labels_;
      for (const float number : row) targets[first + static_cast<size_t>(class_of(number))] = 1;
      return;
    }
    const float only = row.at(0);
    targets.push_back(loss_ == nn::DocumentLoss::kNumbers ? only
                                                          : static_cast<float>(class_of(only)));
  }

  Figures figures_of_all(std::span<const double> tally) const override {
    return label_figures(loss_, tally, figures_);
  }

  nn::DocumentLoss loss_;
  size_t num_labels_;
  LabelFigures figures_;
  bool reads_first_;
  int64_t pad_id_;
  Set sets_[3];  // by split
};

}  // namespace

std::unique_ptr<Recipe> make_classify(const BeforeTraining& before) {
  return std::make_unique<Classify>(before);
}

}  // namespace strata::train
