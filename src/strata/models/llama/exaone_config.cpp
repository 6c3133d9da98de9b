// Settings of EXAONE 4: norms after attention and MLP and of the heads, and where there is a
// window, global layers without positions. Source: transformers configuration_exaone4.py.
#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {
namespace {

// The reference counts by integers alone; published files with another pattern list their layers.
int64_t parse_period(const ConfigReader& config) {
  const Json& json = config.json();
  const bool is_counted = !json.contains("sliding_window_pattern") ||
                          json.at("sliding_window_pattern").is_number_integer();
  if (is_counted) return config.positive_integer("sliding_window_pattern", 4);
  throw FormatError(
      "config.json: found sliding_window_pattern = {} and no layer_types, expected an integer or a "
      "list of layers; add layer_types to the file",
      dump_python(json.at("sliding_window_pattern"), /*indent=*/-1));
}

}  // namespace

void parse_exaone_windows(const ConfigReader& config, LlamaConfig& c) {
  if (config.json().contains("sliding_window") && !config.has("sliding_window")) {
    const auto types = read_layer_types(config, c.num_hidden_layers);
    if (!types || std::ranges::count(*types, true) == 0) return;
    throw FormatError(
        "config.json: found sliding_attention in layer_types and sliding_window = None, expected "
        "one of both; fix the file");
  }
  c.windows = parse_windows(config, c.num_hidden_layers,
                            config.has("layer_types") ? 1 : parse_period(config));
  for (const int64_t window : c.windows) c.rotates.push_back(window != 0);
}

LlamaConfig parse_exaone4_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = "Exaone4DecoderLayer";
  c.architecture = "Exaone4ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 102400;
  c.intermediate_size = 16384;
  c.rms_norm_eps = 1e-5;
  c.layer_norms = {{NormPlace::kAttentionOutput, "post_attention_layernorm"},
                   {NormPlace::kMlpOutput, "post_feedforward_layernorm"}};
  c.head_norms = true;
  parse_common(config, c);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 32);
  parse_head_dim(config, c);
  parse_exaone_windows(config, c);
  parse_positions(config, c);
  return c;
}

}  // namespace strata::models
