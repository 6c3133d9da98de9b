// What models of encoder and decoder share: the pass over the source, what a decoder's attention
// reads of the encoder and of earlier tokens, the loss at its end, which names their embedding has
// in files. Owns: those steps. Never: blocks, projections.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/models/tied_model.h"
#include "strata/nn/attention/biased_attention.h"
#include "strata/nn/batch.h"
#include "strata/nn/linear.h"

namespace strata::models {

// Which of the two stacks a block belongs to.
enum class Stack { kEncoder, kDecoder };

// The place on the shelf of what the decoder reads of the encoder; families have others after it.
inline constexpr int kEncoderOutput = 0;

// A place of the model where activations are dropped, for nn::dropout.
class DropoutPlaces {
 public:
  // Adapters count their layers from 0.
  uint64_t next() { return next_++; }

 private:
  uint64_t next_ = uint64_t{1} << 32;
};

// The same pass over the source's tokens.
nn::ForwardContext of_source(const nn::ForwardContext& context);

// Generation: puts this token's keys and values after those of the decoder's layer `index` and
// makes `qkv` and `shape` those of all tokens. Else nothing.
void read_decoder_cache(std::vector<at::Tensor>& qkv, nn::BiasedAttentionShape& shape,
                        int64_t index, const nn::ForwardContext& context);

// The decoder's documents, of which several side by side may read one source (beams of an answer),
// where they look at it: as one document of queries, so that no key is there twice.
std::vector<int64_t> offsets_by_source(const nn::Batch& batch);

// Keys and values that the decoder's layer `index` makes of the encoder's output, in a generation
// once.
std::vector<at::Tensor> source_keys_values(const nn::Linear& k, const nn::Linear& v, int64_t index,
                                           const nn::ForwardContext& context);

// What a head gives for the output layer's inputs `h` [T, hidden]: the sum of losses, or in a
// generation the logits after each document and 0.
at::Tensor loss_or_logits(const at::Tensor& h, const nn::Linear& lm_head,
                          const nn::ForwardContext& context);

// A model whose stacks read one embedding, which may be the output layer's weight, too.
class EncoderDecoderModel : public TiedModel {
 public:
  WeightSources check_weights(const hf::ModelFolder& folder) override;
  // Nothing: the file's weights say whether the output layer is tied.
  void describe_tie(Json&) const override {}

 protected:
  struct Names {
    std::vector<std::string> others;   // of the embedding, which files may hold beside it
    std::vector<std::string> ignored;  // endings of tensors that a file may hold for nothing
  };
  EncoderDecoderModel(at::ScalarType storage, Names names)
      : TiedModel(storage), names_(std::move(names)) {}

 private:
  Names names_;
};

}  // namespace strata::models
