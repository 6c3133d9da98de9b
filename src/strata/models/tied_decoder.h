// A decoder whose output layer may be its embedding's table: what those of several families have
// alike. Owns: which names a file may hold, what config.json says of the tie. Never: blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "strata/models/tied_model.h"

namespace strata::models {

class TiedDecoder : public TiedModel {
 public:
  // As config.json has them.
  struct Options {
    bool tie_word_embeddings;
    bool has_own_head;                               // the file's, of other values
    int64_t num_labels;                              // of a head for documents, never tied; 0: none
    std::string body_prefix = {};                    // of names that a file may hold without it
    std::vector<std::string> ignored_suffixes = {};  // of tensors that a file may hold for nothing
    std::vector<std::string> ignored_prefixes = {};
  };

  WeightSources check_weights(const hf::ModelFolder& folder) override;
  bool ignores(const std::string& tensor) const override;
  bool is_called_tied() const override;
  void describe_tie(Json& config) const override;

 protected:
  TiedDecoder(Options options, at::ScalarType storage)
      : TiedModel(storage), options_(std::move(options)) {}

  // What the output layer begins with: the table, or null for a weight of its own.
  std::shared_ptr<nn::Parameter> tied_table() const;

 private:
  const hf::TensorInfo* find(const hf::ModelFolder& folder, const std::string& name) const override;
  // Under which a file may hold the weight, the tie aside.
  std::vector<std::string> names_of(const std::string& weight) const;

  Options options_;
};

// The chain of a decoder.
template <typename Layers>
std::vector<Block*> chain_of(Block& embedding, const Layers& layers, Block& head) {
  std::vector<Block*> chain{&embedding};
  for (const auto& layer : layers) chain.push_back(layer.get());
  chain.push_back(&head);
  return chain;
}

// Biases begin at zero, norms at one, matrices are drawn.
void init_as_decoder(const nn::Parameter& parameter, at::Tensor full, double deviation,
                     at::Generator generator);

}  // namespace strata::models
