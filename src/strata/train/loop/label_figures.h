// How often a head that tells labels is right: accuracy, F1, squared error, correlations. Owns:
// what is counted, so that the figures of a set are those of all its rows, however they were dealt.
// Never: the loss.
// Source: scikit-learn's accuracy_score, f1_score, matthews_corrcoef and mean_squared_error,
// scipy's pearsonr and spearmanr; which of them are of which task: the metric "glue".
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "strata/nn/document_loss.h"
#include "strata/train/loop/figures.h"

namespace strata::train {

// Documents that the task's loss is of.
int64_t num_counted(const nn::DocumentTask& task);

// Sums over those documents, to be added up over batches and ranks: as many for every batch.
std::vector<double> tally_of(const nn::DocumentTask& task);

// Of correlations, which are of all values at once: each document's value and number at its place,
// `rows`, among those of the set.
std::vector<double> placed_tally_of(const nn::DocumentTask& task, std::span<const int64_t> rows,
                                    size_t set_size);

// What an evaluation tells.
struct LabelFigures {
  // Of classes accuracy, f1, matthews_correlation; of several labels f1 over all of them; of
  // numbers mse; of a placed tally pearson and spearmanr; combined_score is the mean of those
  // before it.
  std::vector<std::string_view> names;
  // f1 is that of class 1; else the mean over the classes that rows have or were told to have.
  bool is_of_class_1 = false;

  bool are_placed() const;
};

// A correlation with what is everywhere the same is 0.
Figures label_figures(nn::DocumentLoss loss, std::span<const double> tally,
                      const LabelFigures& figures);

// Figures of a step's micro-batch, averaged over ranks: accuracy of classes, f1 of several labels.
Figures label_figures_of_step(const nn::DocumentTask& task);

}  // namespace strata::train
