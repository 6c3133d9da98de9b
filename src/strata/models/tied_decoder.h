// A decoder whose output layer may be its embedding's table, as far as that goes. Owns: the tie,
// and which names of both a file may hold. Never: blocks, initial values.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/model.h"
#include "strata/nn/linear.h"

namespace strata::models {

class TiedDecoder : public Model {
 public:
  // As config.json has them.
  struct Options {
    bool tie_word_embeddings;
    bool scores_documents;                      // a head of one number, never tied
    std::vector<std::string> ignored_suffixes;  // of tensors that a file may hold for nothing
  };

  WeightSources check_weights(const hf::ModelFolder& folder) override;
  bool follow_tie(const hf::ModelFolder& folder) override;
  bool is_called_tied() const override;
  void describe_tie(Json& config) const override;

 protected:
  TiedDecoder(Options options, at::ScalarType storage)
      : options_(std::move(options)), storage_(storage) {}

  virtual const std::shared_ptr<nn::Parameter>& table() const = 0;
  virtual nn::Linear& output_layer() const = 0;

 private:
  bool is_tied() const { return output_layer().shared_weight() == table(); }
  // Gives the output layer a parameter "lm_head.weight" of its own.
  void untie();
  bool untie(const std::string& name) override;

  Options options_;
  at::ScalarType storage_;
};

}  // namespace strata::models
