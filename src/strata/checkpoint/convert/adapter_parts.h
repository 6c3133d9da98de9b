// Which tensors of an adapter belong to which weight of a base, and whether they fit it.
// Owns: PEFT's names of parts, misfits, what ties and grown vocabularies mean. Never: values, files
// that are written.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "strata/adapters/adapter_options.h"
#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

// A layer of one expert, which the reference holds in a parameter of all of them.
struct LayerOfExperts {
  std::string parameter;  // the name
  int64_t num_layers;     // of an expert in the parameter
  int64_t place;          // among these
  int64_t expert;
  int64_t num_experts = 0;
};

// Where an adapter's parts for one weight of the base stand in its list.
struct Parts {
  std::optional<size_t> a, b, magnitude, whole;
  std::optional<size_t> bias_of_b;  // lora_bias: goes into the layer's bias
  std::optional<size_t> factors;    // (IA)^3, of the weight's rows [out, 1] or columns [1, in]
  std::optional<size_t> columns;    // LoRA of an embedding: A [r, rows], with B in `b`
  std::optional<size_t> rows;       // of single tokens, in place of the base's
  std::optional<size_t> base;       // the base's own weight, saved because its vocabulary grew
  std::optional<size_t> lambda_b, lambda_d;  // VeRA
  bool is_of_experts = false;                // A and B are nn::ExpertBranch's
  std::optional<LayerOfExperts> layer;       // a part of these is the weight's
  bool is_of_matrix = false;  // A and B are of a layer's matrix that target_parameters names

  bool is_empty() const {
    return !a && !b && !magnitude && !whole && !bias_of_b && !factors && !columns && !rows &&
           !base && !lambda_b && !lambda_d;
  }
};

// VeRA's matrices as the adapter's file holds them, and what its layers need of them.
struct SharedProjection {
  std::optional<size_t> a, b;         // places in the adapter's list
  int64_t rank = 0;                   // 0: no layer has a VeRA branch
  int64_t most_in = 0, most_out = 0;  // of all layers
};

// The base's config.json; empty where there is none.
Json config_of(const SavedState& base);

class AdapterParts {
 public:
  static constexpr const char* kHead = "lm_head.weight";

  // `config`: the base's config.json, or nothing. ConfigError with up to five misfits where the
  // adapter is not of such a base. Reads two tensors at most, to see whether they are one.
  AdapterParts(const SavedState& base, const Json& config, SavedState& adapter,
               const adapters::LoraOptions& settings);

  // The parts by the weight's name in the base.
  const std::map<std::string, Parts>& by_weight() const { return parts_; }
  const Parts* find(const std::string& weight) const;
  std::optional<size_t> place_in_base(const std::string& name) const;
  // The tensor of the base that a weight of the result starts as: for a head that is no name of the
  // embedding any more, the embedding.
  size_t source_in_base(const std::string& name) const;
  // A base tensor as the result has it: with the adapter's rows where the vocabulary grew.
  SavedTensor resized(SavedTensor tensor) const;
  const std::vector<int64_t>& shape_of(size_t index) const;

  // The base's embedding, of which the head was a name.
  std::optional<size_t> untied_from() const { return untied_from_; }
  // Rows of embedding and output layer, where the vocabulary grew.
  std::optional<int64_t> num_rows() const { return num_rows_; }
  // The adapter's head for whole texts, in place of the base's output layer (models/reward_head.h).
  // By the names of its weights; how many labels it tells, where it is there.
  using NewWeight = std::pair<std::string, size_t>;
  const std::vector<NewWeight>& new_head() const { return new_head_; }
  std::optional<int64_t> num_labels() const { return num_labels_; }
  bool has_shared_embedding() const { return embedding_ == kShared; }
  const SharedProjection& projection() const { return projection_; }
  // Whether the base holds the weight as [in, out].
  bool is_transposed(const std::string& weight) const;
  // Whether the base holds the matrices of all experts as [experts, out, in].
  bool expert_rows_are_outputs() const;
  // The path of a weight's module, or of experts the parameter's name, as patterns know it.
  std::string module_of(const std::string& weight) const;
  // ConfigError that lists what does not fit.
  [[noreturn]] void refuse(const std::vector<std::string>& misfits) const;

 private:
  // T5's, which encoder and decoder share, GPT-2's, GPT's, that of GPT-2's first files, whose names
  // lack the body's, GPT-NeoX's, OPT's, Falcon's and BLOOM's, Nemotron-H's, and that of the other
  // decoder-only families.
  static constexpr const char* kShared = "shared.weight";
  static constexpr const char* kGpt2Embedding = "transformer.wte.weight";
  static constexpr const char* kGptEmbedding = "transformer.tokens_embed.weight";
  static constexpr const char* kBareEmbedding = "wte.weight";
  static constexpr const char* kNeoXEmbedding = "gpt_neox.embed_in.weight";
  static constexpr const char* kOptEmbedding = "model.decoder.embed_tokens.weight";
  static constexpr const char* kWordEmbedding = "transformer.word_embeddings.weight";
  static constexpr const char* kNemotronEmbedding = "model.embeddings.weight";
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";
  // Of a weight in MXFP4 (hf/mxfp4.h).
  static constexpr std::string_view kBlocks = "_blocks";

  [[noreturn]] void refuse_packed(std::string_view found, const std::string& weight) const;
  // Finds the parameters among the base's that are targets: of experts, and matrices of layers.
  void name_parameter_branches();
  // Whether it is a layer's matrix, over which a branch is that of the layer. ConfigError for what
  // is none and of no experts.
  bool is_targeted_matrix(const std::string& weight) const;
  // Which of those parameters the weight is a layer of, where it is.
  std::optional<LayerOfExperts> layer_of_experts(const std::string& weight) const;
  void add_part(size_t index);
  // `part`: A or B of a branch of experts.
  void add_expert_part(const std::string& parameter, std::optional<size_t> Parts::*part,
                       size_t index);
  // Keeps the base's weights that the adapter holds only where they have more rows.
  void take_grown_rows();
  // A tied output layer has no rows of its own.
  bool has_rows_alone(const Parts& head) const;
  void require_rows_of_both(const Parts& head) const;
  // PEFT saves a tied weight that trained as one under both its names, a checkpoint of a run under
  // the first. Whether this was one.
  bool drop_second_name();
  void check_fit();
  void require_targets() const;
  // Whether it is of a head for whole texts, such as models of the base's family have.
  bool is_document_head(const std::string& weight) const;
  // Whether that of the adapter takes the place of one that tells other labels, or of a head of the
  // same name in a model of another kind.
  bool replaces_head(const std::string& weight, std::vector<int64_t> shape,
                     std::vector<int64_t> base) const;
  // One that the base has not: a head for whole texts, or a misfit.
  void take_new_weight(const std::string& weight, const Parts& parts);
  // Whether the adapter has a branch for the weight.
  bool check_weight(const std::string& weight, const Parts& parts, bool unties);
  // Whether the adapter holds the embedding or output layer with another number of rows.
  bool is_resized(const std::string& weight, const std::vector<int64_t>& found,
                  const std::vector<int64_t>& base);
  void check_vectors(const std::string& weight, const Parts& parts,
                     const std::vector<int64_t>& shape);
  void check_bias(const std::string& weight, const Parts& parts) const;
  void check_experts(const std::string& weight, const Parts& parts,
                     const std::vector<int64_t>& shape) const;
  void check_rows(const std::string& weight, const std::vector<int64_t>& rows,
                  const std::vector<int64_t>& shape) const;

  const SavedState& base_;
  const Json& config_;
  SavedState& adapter_;
  const adapters::LoraOptions& settings_;
  std::map<std::string, size_t> in_base_;
  std::string embedding_ = kEmbedding;                  // the base's name of it
  bool is_bare_ = false;                                // the base's names lack the body's
  std::set<std::string> targeted_matrices_;             // of layers, by target_parameters
  std::map<std::string, std::string> expert_branches_;  // parameter by path of its branch
  // Weights in the base of such a parameter, where it is none itself.
  std::map<std::string, std::map<std::string, LayerOfExperts>> expert_layers_;
  std::map<std::string, Parts> parts_;
  SharedProjection projection_;
  std::optional<size_t> untied_from_;
  std::vector<NewWeight> new_head_;
  std::optional<int64_t> num_labels_;
  std::optional<int64_t> num_rows_;
};

}  // namespace strata::checkpoint
