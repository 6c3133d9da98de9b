// A bidirectional encoder with a head for whole texts: what those of several families have alike.
// Owns: which names a file may hold, which part of the head begins anew over a model that predicts
// tokens, or one without a head. Never: blocks, initial values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/models/model.h"

namespace strata::models {

class EncoderModel : public Model {
 public:
  WeightSources check_weights(const hf::ModelFolder& folder) override;
  bool ignores(const std::string& tensor) const override;
  bool reads_first_token() const override { return true; }
  bool is_of_document_head(const std::string& weight) const override;
  std::vector<std::string> never_quantized() const override;
  bool follow_tie(const hf::ModelFolder&) override { return false; }
  void describe_tie(Json&) const override {}

 protected:
  struct Options {
    std::string classifier;          // the head's last layer
    std::vector<std::string> dense;  // modules of the head before it, which the files may lack
    std::string dense_ending;        // of the path of that which is a matrix
    int64_t num_labels;
    bool has_new_dense;                              // they do
    std::vector<std::string> ignored_suffixes = {};  // of tensors that a file may hold for nothing
  };
  explicit EncoderModel(Options options) : options_(std::move(options)) {}

 private:
  bool untie(const std::string&) override { return false; }
  bool is_of_dense(const std::string& weight) const;

  Options options_;
};

}  // namespace strata::models
