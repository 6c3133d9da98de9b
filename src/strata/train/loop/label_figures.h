// How often a head that tells labels is right: accuracy, F1, squared error. Owns: what is counted,
// so that the figures of a set are those of all its rows, however they were dealt. Never: the loss.
// Source: scikit-learn's accuracy_score, f1_score and mean_squared_error.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/nn/document_loss.h"
#include "strata/train/loop/figures.h"

namespace strata::train {

// Documents that the task's loss is of.
int64_t num_counted(const nn::DocumentTask& task);

// Sums over those documents, to be added up over batches and ranks: as many for every batch.
std::vector<double> tally_of(const nn::DocumentTask& task);

// Of classes accuracy and f1, the mean over the classes that rows have or were told to have; of
// several labels f1 over all of them; of numbers mse.
Figures label_figures(nn::DocumentLoss loss, std::span<const double> tally);

// Of a step's micro-batch, to be a mean over all ranks: accuracy of classes, f1 of several labels.
Figures label_figures_of_step(const nn::DocumentTask& task);

}  // namespace strata::train
