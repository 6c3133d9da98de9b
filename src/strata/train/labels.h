// The labels that a run's head tells: those of the rows, as the settings and config.json number
// them. Never: rows, losses.
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/config/run_config.h"
#include "strata/data/dataset_stats.h"
#include "strata/models/reward_head.h"
#include "strata/train/datasets.h"

namespace strata::train {

// config.json of the base, with the labels of an adapter that is continued where its labels.json
// tells them.
Json config_with_labels(const config::ModelConfig& model);

// Fills what the data say in config.classify: the names of config_with_labels() where they hold all
// labels of the rows (and are num_labels); else those that the rows' files have names for, in their
// order, then others of the rows, whole numbers by their value, texts in the order of their
// characters. Labels that only rows of the evaluation have come along with a warning in `notes`,
// and so do rows of a head that stand for other names from now on. ConfigError for training rows of
// one label, for numbers beside classes, for a metric or smoothing that such labels do not have,
// where num_labels does not fit, and for a continued adapter of another number of labels;
// FormatError for sets of two kinds.
void settle_labels(const Datasets& datasets, const Json& model_config, config::RunConfig& config,
                   std::vector<std::string>& notes);

// Maps a set's labels, by their places there, to the numbers that the head has for them.
std::vector<int64_t> classes_of(const data::DatasetStats& stats,
                                const std::vector<std::string>& names);

models::Problem problem_of(config::LabelProblem problem);

// Makes config.json that of a model of the run's labels; without data (a plan) of those that it has
// or of num_labels. Returns whether its head is a new one. ConfigError for a head of another number
// of labels, unless ignore_mismatched_sizes.
bool give_labels(const config::ClassifyConfig& settings, Json& model_config);

}  // namespace strata::train
