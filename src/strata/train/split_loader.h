// The rows of one split after another, tokenized as the settings want them. Owns: which files,
// splits and options the settings mean, and whether an earlier run's rows do. Never: what is wrong
// with the rows (data_warnings.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "strata/config/run_config.h"
#include "strata/data/prepare.h"
#include "strata/data/store/token_cache.h"
#include "strata/data/store/token_store.h"
#include "strata/train/datasets.h"
#include "strata/train/setup/vocabulary.h"

namespace strata::train {

// The number of a stream's rows that the run will use, in the files' order; 0: all.
int64_t rows_of_stream(const config::RunConfig& config, int data_parallel_size);

class SplitLoader {
 public:
  // `sets` has its tokenizer and template; notes are added to it. All are used as long as this is.
  SplitLoader(const config::RunConfig& config, const Vocabulary& vocabulary,
              const LoadDatasetsOptions& wanted, Datasets& sets);

  data::TokenStore training_rows() const;
  data::TokenStore evaluation_rows() const;
  // Nothing: the task has none, its data lack it, or the settings name what is evaluated.
  std::optional<data::TokenStore> second_evaluation_rows() const;

 private:
  using Make = std::function<data::DatasetStats(data::TokenWriter&)>;

  data::TokenStore load(data::DataRequest request, const std::string& split,
                        data::PrepareOptions options) const;
  data::PrepareOptions evaluation_options() const;
  // Columns of pairs that no setting names are those of the first training row in every split, as
  // the reference's scripts take the names of the training set for all.
  void settle_pair_columns();
  // Rows that an earlier run has tokenized alike, or new ones, kept for the next.
  data::TokenStore load_or_make(const data::TokenSources& sources, const Make& make,
                                data::SharedProgress& progress) const;

  const config::RunConfig& config_;
  const std::string& tool_template_;
  const LoadDatasetsOptions& wanted_;
  Datasets& sets_;
  data::DataRequest request_;
  data::PrepareOptions options_;
};

}  // namespace strata::train
