#include "strata/models/mamba/config.h"

#include <limits>

#include "strata/base/error.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

// transformers 5 writes numbers that JSON has not as {"__float__": "Infinity"}.
double limit_of(const Json& entry) {
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  const Json& value =
      entry.is_object() && entry.contains("__float__") ? entry.at("__float__") : entry;
  if (value.is_number()) return value.get<double>();
  if (value == "Infinity") return kEndless;
  if (value == "-Infinity") return -kEndless;
  throw FormatError(
      "config.json: found {} in time_step_limit, expected a number or Infinity; fix the file",
      entry.dump());
}

nn::StepLimits parse_limits(const ConfigReader& config) {
  require_not_null(config, "time_step_limit");
  if (!config.has("time_step_limit")) return {};
  const Json& list = config.at("time_step_limit");
  if (!list.is_array() || list.size() != 2) {
    throw FormatError(
        "config.json: found time_step_limit = {}, expected a list of two numbers; fix the file",
        list.dump());
  }
  return {.least = limit_of(list.at(0)), .most = limit_of(list.at(1))};
}

// Of a head, or "auto": what the width of the layer leaves for each.
int64_t parse_head_dim(const ConfigReader& config, const MambaWidth& width, int64_t num_heads) {
  const bool is_auto = !config.has("mamba_d_head") || config.at("mamba_d_head") == "auto";
  if (width.channels % num_heads != 0) {
    throw FormatError(
        "config.json: found mamba_n_heads = {}, expected a divisor of {} = {}; fix the file",
        num_heads, width.name, width.channels);
  }
  const int64_t left = width.channels / num_heads;
  const int64_t head_dim = is_auto ? left : config.positive_integer("mamba_d_head", 1);
  if (head_dim == left) return head_dim;
  throw FormatError(
      "config.json: found mamba_d_head = {}, expected {} / mamba_n_heads = {}; fix the file",
      head_dim, width.name, left);
}

}  // namespace

MambaWidth expanded_width(const ConfigReader& config, const LlamaConfig& llama) {
  require_not_null(config, "mamba_expand");
  return {config.positive_integer("mamba_expand", 2) * llama.hidden_size,
          "mamba_expand * hidden_size"};
}

void check_mamba_groups(const MambaConfig& c, const std::string& groups_key,
                        const std::string& heads_key) {
  if (c.shape.num_heads % c.shape.num_groups == 0) return;
  throw FormatError("config.json: found {} = {}, expected a divisor of {} = {}; fix the file",
                    groups_key, c.shape.num_groups, heads_key, c.shape.num_heads);
}

MambaConfig parse_mamba_config(const ConfigReader& config, const LlamaConfig& llama,
                               const MambaWidth& width) {
  require_not_null(
      config, {"mamba_d_conv", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state"});
  // That null means no bias.
  const bool is_null = config.json().contains("mamba_conv_bias") && !config.has("mamba_conv_bias");
  MambaConfig c{.hidden_size = llama.hidden_size,
                .conv_size = config.positive_integer("mamba_d_conv", 4),
                .conv_bias = config.boolean("mamba_conv_bias", !is_null),
                .bias = config.boolean("mamba_proj_bias", false),
                .limits = parse_limits(config),
                .eps = llama.rms_norm_eps,
                .residual_multiplier = llama.residual_multiplier};
  c.out_bias = c.bias;
  c.shape.num_heads = config.positive_integer("mamba_n_heads", 128);
  c.shape.head_dim = parse_head_dim(config, width, c.shape.num_heads);
  c.shape.num_groups = config.positive_integer("mamba_n_groups", 1);
  c.shape.state_dim = config.positive_integer("mamba_d_state", 256);
  check_mamba_groups(c, "mamba_n_groups", "mamba_n_heads");
  return c;
}

}  // namespace strata::models
