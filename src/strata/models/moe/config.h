// The settings of a mixture of experts over Llama's attention (Qwen3-MoE, Qwen2-MoE, Mixtral,
// GLM-4.5, MiniMax-M2, ERNIE 4.5, dots.llm1, K-EXAONE, Solar Open, Mellum 2, FlexOlmo, Trinity),
// read from config.json and checked. Owns: the keys beside those of Llama's families. Never:
// weights. Source: transformers
// configuration_{qwen3_moe,qwen2_moe,mixtral,glm4_moe,minimax_m2,ernie4_5_moe,dots1,exaone_moe}.py,
// configuration_{solar_open,mellum,flex_olmo,afmoe}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/models/llama/config.h"
#include "strata/nn/experts/corrected_router.h"
#include "strata/nn/experts/router.h"
#include "strata/nn/experts/sigmoid_router.h"

namespace strata::models {

struct MixtureConfig {
  LlamaConfig llama;
  // As the files name them, which transformers fuses when it loads them.
  std::string module = "mlp";
  std::string gate_name = "gate_proj", up_name = "up_proj", down_name = "down_proj";
  std::string router_name = "gate";
  bool router_is_linear = false;  // in the reference, too: a layer as all others are
  int64_t num_experts = 0;
  int64_t intermediate_size = 0;  // of an expert
  nn::RouterOptions router{};
  std::vector<int64_t> experts_per_token = {};  // of each layer; empty: the router's
  // One of these may be in its place. A buffer corrects their choice.
  std::optional<nn::SigmoidRouterOptions> sigmoid_router = {};
  std::optional<nn::CorrectedRouterOptions> corrected_router = {};
  // In the module; empty: nothing does.
  std::string correction_name = "gate.e_score_correction_bias";
  bool correction_is_row = false;  // [1, experts]
  bool balances_logits = false;    // a loss balances the softmax of logits that these choose by
  bool wide_router = false;        // its products are taken in fp32
  bool keeps_router = false;       // its weights rest, train and are written in fp32, too
  bool narrow_scores = false;      // scores by sigmoids are computed in the type of the logits
  // Adapters and codes know router and experts by no names, as those of the reference, which holds
  // them as parameters and, in this family, turns no name of a layer into one.
  bool is_no_target = false;
  bool router_comes_first = false;   // in the reference's order of parameters
  bool shared_comes_second = false;  // after it, before the experts
  // Size of the expert that sees all tokens; none: there is no such expert.
  std::optional<int64_t> shared_intermediate_size = {};
  std::string shared_module = "shared_expert";
  bool shared_has_gate = true;         // its result is scaled token by token
  std::vector<bool> has_experts = {};  // of each layer; others have Llama's MLP
};

// router_aux_loss_coef, the weight of the loss that balances the experts; nothing in other
// families. FormatError for another value than a number of at least 0.
std::optional<double> balancing_coefficient(const Json& config);
// What the reference's trainer writes into config.json of what it trained with that weight.
void describe_balancing(double coefficient, Json& config);

// Errors: as parse_llama_config().
MixtureConfig parse_qwen3_moe_config(const Json& config);
MixtureConfig parse_qwen2_moe_config(const Json& config);
MixtureConfig parse_mixtral_config(const Json& config);
MixtureConfig parse_glm4_moe_config(const Json& config);
MixtureConfig parse_minimax_m2_config(const Json& config);
MixtureConfig parse_ernie4_5_moe_config(const Json& config);
MixtureConfig parse_dots1_config(const Json& config);
MixtureConfig parse_exaone_moe_config(const Json& config);
MixtureConfig parse_solar_open_config(const Json& config);
MixtureConfig parse_mellum_config(const Json& config);
MixtureConfig parse_flex_olmo_config(const Json& config);
MixtureConfig parse_afmoe_config(const Json& config);

}  // namespace strata::models
