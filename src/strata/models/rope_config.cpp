#include "strata/models/rope_config.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "strata/base/error.h"

namespace strata::models {
namespace {

nn::RopeKind parse_rope_kind(const std::string& name) {
  static const std::map<std::string, nn::RopeKind> kKinds{
      {"default", nn::RopeKind::kDefault},   {"linear", nn::RopeKind::kLinear},
      {"dynamic", nn::RopeKind::kDynamic},   {"yarn", nn::RopeKind::kYarn},
      {"longrope", nn::RopeKind::kLongrope}, {"llama3", nn::RopeKind::kLlama3}};
  const auto kind = kKinds.find(name);
  if (kind != kKinds.end()) return kind->second;
  throw ConfigError(
      "config.json: found rope_type \"{}\", expected one of default, linear, dynamic, yarn, "
      "longrope, llama3; use a checkpoint with one of these",
      name);
}

// The old `rope_scaling` wins over `rope_parameters` where a file has both, as in the reference.
ConfigReader rope_reader(const ConfigReader& config, const Json& nothing) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (config.has(key) && !(config.at(key).is_object() && config.at(key).empty())) {
      return ConfigReader(config.at(key), std::string(key) + ".");
    }
  }
  return ConfigReader(nothing);
}

// Older files call it "type".
std::string kind_text(const ConfigReader& reader) {
  return reader.text("rope_type", reader.text("type", "default"));
}

// Settings by type of layer ("full_attention": {...}) are other families'.
void refuse_nested(const ConfigReader& reader) {
  for (const auto& [key, value] : reader.json().items()) {
    if (!value.is_object()) continue;
    throw ConfigError(
        "config.json: found {}{} = {}, expected one kind of rotary positions for all layers; use a "
        "checkpoint without settings by type of layer",
        reader.prefix(), key, dump_python(value, /*indent=*/-1));
  }
}

void require(const ConfigReader& reader, const std::string& key, const std::string& kind) {
  if (!reader.has(key)) {
    throw FormatError(
        "config.json: found no {} for rope_type \"{}\", expected a number; add it to "
        "the file",
        key, kind);
  }
}

// A key beside the rope's settings comes first, as in the reference.
int64_t original_positions(const ConfigReader& config, const ConfigReader& reader,
                           const RopeShape& shape) {
  const std::string key = "original_max_position_embeddings";
  return config.positive_integer(key, reader.positive_integer(key, shape.max_position_embeddings));
}

void parse_llama3(const ConfigReader& reader, nn::RopeOptions& rope) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    require(reader, key, "llama3");
  }
  rope.factor = reader.positive_number("factor", 1.0);
  rope.low_freq_factor = reader.positive_number("low_freq_factor", 1.0);
  rope.high_freq_factor = reader.positive_number("high_freq_factor", 4.0);
}

// How much further positions reach than before: the key, or the ratio of the lengths.
double stretch_of(const ConfigReader& reader, const nn::RopeOptions& rope) {
  const double ratio = static_cast<double>(rope.max_position_embeddings) /
                       static_cast<double>(rope.original_max_position_embeddings);
  return reader.positive_number("factor", ratio);
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const ConfigReader& reader, double factor) {
  if (reader.has("attention_factor")) return reader.positive_number("attention_factor", 1.0);
  const double mscale = reader.number("mscale", 0), all_dim = reader.number("mscale_all_dim", 0);
  if (mscale == 0 || all_dim == 0) return yarn_scale(factor, 1);
  const double result = yarn_scale(factor, mscale) / yarn_scale(factor, all_dim);
  if (std::isfinite(result) && result > 0) return result;
  throw FormatError(
      "config.json: found mscale = {} and mscale_all_dim = {}, expected numbers above 0; fix the "
      "file",
      mscale, all_dim);
}

void parse_yarn(const ConfigReader& reader, nn::RopeOptions& rope) {
  // A factor of null is the ratio of the lengths; one that is missing is an error in the reference.
  if (!reader.json().contains("factor")) require(reader, "factor", "yarn");
  rope.factor = stretch_of(reader, rope);
  rope.attention_factor = yarn_attention_factor(reader, rope.factor);
  // Zero means the default there.
  const auto beta = [&](const char* key, double fallback) {
    return reader.number(key, 0) == 0 ? fallback : reader.positive_number(key, fallback);
  };
  rope.beta_fast = beta("beta_fast", rope.beta_fast);
  rope.beta_slow = beta("beta_slow", rope.beta_slow);
  rope.truncate = reader.boolean("truncate", !reader.json().contains("truncate"));
  if (rope.theta == 1.0) {
    throw FormatError(
        "config.json: found rope_theta = 1 with rope_type \"yarn\", expected another number above "
        "0; fix the file");
  }
}

std::vector<double> factor_list(const ConfigReader& reader, const std::string& key, int64_t size) {
  if (!reader.has(key)) {
    throw FormatError(
        "config.json: found no {} for rope_type \"longrope\", expected a list of {} numbers; add "
        "it to the file",
        key, size);
  }
  std::vector<double> list = reader.positive_numbers(key);
  if (static_cast<int64_t>(list.size()) == size) return list;
  throw FormatError(
      "config.json: found {} with {} numbers, expected {}, half the channels of a head that turn; "
      "fix the file",
      key, list.size(), size);
}

void parse_longrope(const ConfigReader& reader, nn::RopeOptions& rope) {
  rope.short_factors = factor_list(reader, "short_factor", rope.head_dim / 2);
  rope.long_factors = factor_list(reader, "long_factor", rope.head_dim / 2);
  const double stretch = stretch_of(reader, rope);
  if (reader.has("attention_factor")) {
    rope.attention_factor = reader.positive_number("attention_factor", 1.0);
  } else if (stretch > 1) {
    if (rope.original_max_position_embeddings == 1) {
      throw FormatError(
          "config.json: found original_max_position_embeddings = 1 with rope_type \"longrope\", "
          "expected at least 2; fix the file");
    }
    const double length = static_cast<double>(rope.original_max_position_embeddings);
    rope.attention_factor = std::sqrt(1 + std::log(stretch) / std::log(length));
  }
}

void refuse_partial(const ConfigReader& config, const ConfigReader& reader) {
  const double rotated =
      reader.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0));
  if (rotated == 1.0) return;
  throw ConfigError(
      "config.json: found partial_rotary_factor = {}, expected 1 for a model with these blocks; "
      "remove the key",
      rotated);
}

// `key`, `fallback`: of config.json, where the rope's settings do not say it.
int64_t turning_channels(const ConfigReader& config, const ConfigReader& reader, int64_t head_dim,
                         const std::string& key = "partial_rotary_factor", double fallback = 1.0) {
  const std::string own_key = "partial_rotary_factor";
  const double part = reader.number(own_key, config.number(key, fallback));
  const auto channels = static_cast<int64_t>(part * static_cast<double>(head_dim));
  if (part > 0 && part <= 1 && channels > 0 && channels % 2 == 0) return channels;
  throw FormatError(
      "config.json: found {} = {} of head_dim = {}, expected a part of at most 1 that is an even "
      "number of channels; fix the file",
      reader.has(own_key) ? own_key : key, part, head_dim);
}

void check_head_dim(const nn::RopeOptions& rope, const char* key) {
  if (rope.head_dim % 2 != 0) {
    throw FormatError(
        "config.json: found {} = {}, expected an even number because rotary positions turn pairs; "
        "fix the file",
        key, rope.head_dim);
  }
  if (rope.kind == nn::RopeKind::kDynamic && rope.head_dim == 2) {
    throw FormatError(
        "config.json: found {} = 2 with rope_type \"dynamic\", expected at least 4; fix the file",
        key);
  }
}

// What the kinds have beside frequencies and number of channels.
void parse_kind(const ConfigReader& config, const ConfigReader& reader, const RopeShape& shape,
                nn::RopeOptions& rope) {
  rope.original_max_position_embeddings = original_positions(config, reader, shape);
  if (rope.kind == nn::RopeKind::kLlama3) {
    parse_llama3(reader, rope);
  } else if (rope.kind == nn::RopeKind::kYarn) {
    parse_yarn(reader, rope);
  } else if (rope.kind == nn::RopeKind::kLongrope) {
    parse_longrope(reader, rope);
  } else {
    require(reader, "factor", kind_text(reader));
    rope.factor = reader.positive_number("factor", 1.0);
  }
}

}  // namespace

nn::RopeOptions parse_rope(const ConfigReader& config, const RopeShape& shape) {
  const Json nothing = Json::object();
  const ConfigReader reader = rope_reader(config, nothing);
  refuse_nested(reader);
  nn::RopeOptions rope;
  rope.kind = parse_rope_kind(kind_text(reader));
  const std::string key = "partial_rotary_factor";
  rope.head_dim = shape.default_part
                      ? turning_channels(config, reader, shape.head_dim, key, *shape.default_part)
                      : shape.head_dim;
  rope.max_position_embeddings = shape.max_position_embeddings;
  rope.theta = reader.positive_number("rope_theta",
                                      config.positive_number("rope_theta", shape.default_theta));
  check_head_dim(rope, shape.key);
  if (rope.kind == nn::RopeKind::kDefault) return rope;  // which looks at no partial_rotary_factor
  if (!shape.default_part) refuse_partial(config, reader);
  parse_kind(config, reader, shape, rope);
  return rope;
}

double parse_score_scale(const ConfigReader& config) {
  const Json nothing = Json::object();
  const ConfigReader reader = rope_reader(config, nothing);
  const double all_dim = reader.number("mscale_all_dim", 0);
  if (kind_text(reader) == "default" || all_dim == 0) return 1.0;
  require(reader, "factor", kind_text(reader));
  const double factor = yarn_scale(reader.positive_number("factor", 1.0), all_dim);
  return factor * factor;
}

nn::RopeOptions parse_phi3_rope(const ConfigReader& config, const RopeShape& shape) {
  const Json nothing = Json::object();
  const ConfigReader reader = rope_reader(config, nothing);
  refuse_nested(reader);
  nn::RopeOptions rope;
  const std::string kind = kind_text(reader);
  if (kind == "longrope" || kind == "su" || kind == "yarn") {
    rope.kind = nn::RopeKind::kLongrope;
  } else if (kind != "default") {
    throw ConfigError(
        "config.json: found rope_type \"{}\", expected default or longrope in a Phi-3 model; use a "
        "checkpoint with one of these",
        kind);
  }
  rope.head_dim = turning_channels(config, reader, shape.head_dim);
  rope.max_position_embeddings = shape.max_position_embeddings;
  rope.theta = reader.positive_number("rope_theta", config.positive_number("rope_theta", 10000.0));
  // The key beside the rope's settings alone counts, and it has a default.
  rope.original_max_position_embeddings =
      config.positive_integer("original_max_position_embeddings", 4096);
  if (rope.kind == nn::RopeKind::kLongrope) parse_longrope(reader, rope);
  return rope;
}

nn::RopeOptions parse_gpt_neox_rope(const ConfigReader& config, const RopeShape& shape) {
  const Json nothing = Json::object();
  const ConfigReader reader = rope_reader(config, nothing);
  refuse_nested(reader);
  nn::RopeOptions rope;
  rope.kind = parse_rope_kind(kind_text(reader));
  rope.head_dim = turning_channels(config, reader, shape.head_dim, "rotary_pct", 0.25);
  rope.max_position_embeddings = shape.max_position_embeddings;
  // Of the keys outside the rope's settings only this one counts.
  rope.theta = reader.positive_number(
      "rope_theta", config.positive_number("rotary_emb_base", shape.default_theta));
  check_head_dim(rope, shape.key);
  if (rope.kind != nn::RopeKind::kDefault) parse_kind(config, reader, shape, rope);
  return rope;
}

}  // namespace strata::models
