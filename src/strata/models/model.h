// A model as the engine sees it: an ordered chain of blocks over parameters. Single-device code;
// knows nothing of sharding. Families (llama/, ...) implement Block and are found by the registry.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "strata/base/json.h"
#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"
#include "strata/nn/virtual_tokens.h"

namespace strata::hf {
class ModelFolder;
}
namespace strata::nn {
class Embedding;
class Linear;
}  // namespace strata::nn

namespace strata::models {

// Which part of the chain a block is: an Embedding first, Layers, one Head last. The decoder of an
// encoder-decoder model begins with an Embedding again, which reads ids and not its input.
enum class BlockKind { kEmbedding, kLayer, kHead };

// An activation that a block puts on the shelf (nn::ForwardContext::shelf), by its place there.
struct Shelved {
  int slot;
  bool has_gradient;  // false: nothing that trains depends on it
};

class Block {
 public:
  virtual ~Block() = default;
  virtual BlockKind kind() const = 0;
  // The class name in the reference stack ("LlamaDecoderLayer"), for wrap policies; the module path
  // for messages ("model.layers.3").
  virtual std::string class_name() const = 0;
  virtual std::string path() const = 0;
  // In the order of the reference's named_parameters(). A tied weight appears in each block using
  // it. Adapters that were attached are included after the base weights of their layer.
  virtual std::vector<nn::Parameter*> parameters() = 0;
  // Linear layers by module path, in module order; adapters attach to them.
  virtual std::vector<nn::Linear*> linears() = 0;
  // The layer that turns token ids into vectors, where the block has one; adapters attach to it.
  virtual nn::Embedding* embedding() { return nullptr; }
  // What forward() puts on the shelf, and the slots of it that forward() looks at and others made.
  virtual std::vector<Shelved> makes() const { return {}; }
  virtual std::vector<int> reads() const { return {}; }

  // kEmbedding: `x` is a placeholder (its requires_grad alone matters, I4); returns [T, hidden].
  // kLayer: [T, hidden] -> [T, hidden]. kHead: [T, hidden] -> scalar sum of losses * loss_scale;
  // it fills context.head.sums, and, when a gradient is needed, computes gradients already here.
  virtual at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) = 0;
};

// Keys and values of a token over all layers, as prefix tuning lays them out.
struct KeyValueShape {
  int64_t layers;
  int64_t heads;
  int64_t head_dim;
};

// Numbers of heads in every layer's attention.
struct HeadCounts {
  int64_t queries;
  int64_t keys;  // and values
};

// Where each base weight is found: parameter name -> tensor name in the checkpoint. They differ for
// a tied weight of which the file holds only the other name.
using WeightSources = std::map<std::string, std::string>;

class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<Block*> blocks() = 0;
  // Every weight once, in the reference's named_parameters() order (decides decay groups, sharding
  // order of the export and the trainable-parameters line): those of the blocks, what is tied where
  // it comes first, then those of virtual tokens. Adapter weights included when attached.
  std::vector<nn::Parameter*> parameters();
  // Logits [rows, vocab] in fp32 for rows of the head's input (generation, tests).
  // Requires: the head's unit is gathered.
  virtual at::Tensor logits(const at::Tensor& x) = 0;
  virtual std::string no_split_class() const = 0;  // default class to wrap
  virtual std::string architecture() const = 0;    // the reference's class, for config.json

  // Compares the checkpoint with the expected names and shapes; FormatError that names the file's
  // missing, unexpected or misshapen tensors. Calls follow_tie(). Call after attaching adapters and
  // before giving out memory.
  virtual WeightSources check_weights(const hf::ModelFolder& folder) = 0;
  // Whether a file may hold a tensor of this name for nothing.
  virtual bool ignores(const std::string& /*tensor*/) const { return false; }
  // Unties an output layer of which the file holds other values than of the embedding, as the
  // reference does; returns whether it did. Call before attaching adapters: they hold weights.
  virtual bool follow_tie(const hf::ModelFolder& folder) = 0;
  // Whether config.json ties embedding and output layer, whatever the file holds: PEFT then takes
  // rows of single tokens for both.
  virtual bool is_called_tied() const { return false; }
  // Fills `full`, the whole CPU tensor of a base weight, for training from scratch.
  virtual void init_weight(const nn::Parameter& parameter, at::Tensor full,
                           at::Generator generator) const = 0;

  // For adapters: the parameter `name` as a trainable copy of the base's weight; a tied weight is
  // untied first. InternalError for an unknown name.
  nn::Parameter& trainable_copy(const std::string& name);
  // Elements of base weights that a trainable copy replaces (the reference keeps and counts both).
  int64_t num_replaced_elements() const { return num_replaced_elements_; }
  // Elements that the reference keeps beside a tied weight which trains as one
  // (ensure_weight_tying).
  void add_tied_copy(int64_t numel) { num_tied_copies_ += numel; }
  int64_t num_copied_elements() const { return num_replaced_elements_ + num_tied_copies_; }
  // What LoRA targets when nothing is said: ends of module paths.
  virtual std::vector<std::string> default_lora_targets() const = 0;
  // The same of VeRA.
  virtual std::vector<std::string> default_vera_targets() const { return default_lora_targets(); }
  // What (IA)^3 rescales when nothing is said, and which of it at the input. Empty: must be said.
  virtual std::vector<std::string> default_ia3_targets() const { return {}; }
  virtual std::vector<std::string> default_ia3_feedforward() const { return {}; }

  // Bytes of what the reference keeps beside the weights (tables of rotary positions), as its
  // get_memory_footprint() counts them.
  virtual int64_t buffer_bytes() const { return 0; }
  // Prompt and prefix tuning: the values' parameter joins the blocks that read it. One at most.
  // The default refuses: ConfigError.
  virtual void attach_virtual_tokens(nn::VirtualTokens tokens);
  virtual const nn::VirtualTokens* virtual_tokens() const { return nullptr; }
  // The embedding's weight and the shape of a prefix. The defaults refuse, too.
  virtual nn::Parameter& embedding_weight();
  virtual KeyValueShape key_value_shape() const;
  // Nothing: sequence parallelism (nn/attention/sequence_parallel.h) is not for it.
  virtual std::optional<HeadCounts> head_counts() const { return {}; }
  // Encoder-decoder models: the place in blocks() of the decoder's embedding, and the id that
  // decoding starts from. Others: 0 and none.
  virtual int decoder_begin() const { return 0; }
  virtual std::optional<int64_t> decoder_start_id() const { return {}; }
  // Places on the shelf that the blocks use.
  virtual int num_shelved() const { return 0; }
  // Brings the keys of config.json up to date that say whether embedding and output layer are tied.
  virtual void describe_tie(Json& config) const = 0;
  // Whether a name of experts' layers ("up_proj", "gate") means those alone to LoRA, and never a
  // layer of the same name beside them: so PEFT takes it where it turns such names into parameters.
  virtual bool names_mean_experts() const { return false; }
  // Layers that stay plain when the base is quantised: ends of module paths.
  virtual std::vector<std::string> never_quantized() const { return {}; }

  // For a model with a head for whole documents (reward_head.h): whether the token that it reads is
  // the first of each; else it is the last that is not padding.
  virtual bool reads_first_token() const { return false; }
  // Whether the weight is of that head, which a model of the family that predicts tokens lacks.
  virtual bool is_of_document_head(const std::string& weight) const;

  // Where the reference has its modules in another order than the blocks: the place of one, by the
  // name of a weight of it; those of one place stand as the blocks have them.
  virtual size_t module_place(const std::string& /*weight*/) const { return 0; }

  virtual int64_t vocab_size() const = 0;
  virtual int64_t hidden_size() const = 0;
  // The most tokens of one document, as config.json says.
  virtual int64_t max_position_embeddings() const = 0;

 protected:
  // Gives both names of a tied weight parameters of their own. False: `name` is not tied.
  virtual bool untie(const std::string& name) = 0;
  // For untie(): the parameter `name` beside the weight that it was tied to.
  static std::shared_ptr<nn::Parameter> untied_copy(const std::string& name,
                                                    const nn::Parameter& tied,
                                                    at::ScalarType storage);

 private:
  std::set<std::string> copied_;
  int64_t num_replaced_elements_ = 0;
  int64_t num_tied_copies_ = 0;
};

}  // namespace strata::models
