// The kinds of Nemotron-H's layers: a list of names, or a text of letters.
#include <optional>
#include <string>

#include "strata/base/error.h"
#include "strata/models/nemotron_h/config.h"

namespace strata::models {
namespace {

using Kind = NemotronLayerKind;
using Kinds = std::vector<Kind>;

struct Name {
  const char* name;
  Kind kind;
};
// Newer names and older ones.
constexpr Name kNames[] = {{"linear_attention", Kind::kMamba},
                           {"mamba", Kind::kMamba},
                           {"full_attention", Kind::kAttention},
                           {"attention", Kind::kAttention},
                           {"mlp", Kind::kMlp},
                           {"moe", Kind::kMixture}};
constexpr Name kLetters[] = {
    {"M", Kind::kMamba}, {"*", Kind::kAttention}, {"-", Kind::kMlp}, {"E", Kind::kMixture}};

std::optional<Kinds> read_list(const ConfigReader& config, const char* key) {
  if (!config.has(key)) return {};
  const Json& list = config.at(key);
  if (!list.is_array()) {
    throw FormatError("config.json: found {} = {}, expected a list of texts; fix the file", key,
                      list.dump());
  }
  Kinds kinds;
  for (const Json& entry : list) {
    const size_t before = kinds.size();
    for (const Name& known : kNames) {
      if (entry == known.name) kinds.push_back(known.kind);
    }
    if (kinds.size() > before) continue;
    throw ConfigError(
        "config.json: found {} in {}, expected linear_attention, full_attention, mlp or moe; use a "
        "checkpoint with such layers",
        entry.dump(), key);
  }
  return kinds;
}

std::optional<Kinds> read_letters(const ConfigReader& config, const char* key) {
  if (!config.has(key)) return {};
  Kinds kinds;
  for (const char letter : config.text(key, "")) {
    const size_t before = kinds.size();
    for (const Name& known : kLetters) {
      if (letter == known.name[0]) kinds.push_back(known.kind);
    }
    if (kinds.size() > before) continue;
    throw ConfigError(
        "config.json: found \"{}\" in {}, expected M, *, - or E; use a checkpoint with such layers",
        letter, key);
  }
  return kinds;
}

}  // namespace

std::vector<NemotronLayerKind> parse_nemotron_kinds(const ConfigReader& config) {
  const char* kLetterKey = "hybrid_override_pattern";
  std::optional<Kinds> found;
  const char* found_key = nullptr;
  const auto take = [&](std::optional<Kinds> kinds, const char* key) {
    if (kinds && found && *kinds != *found) {
      throw FormatError("config.json: found {} with other {}, expected the same; remove {}", key,
                        found_key, key);
    }
    if (!kinds || found) return;
    found = std::move(kinds);
    found_key = key;
  };
  for (const char* key : {"layers_block_type", "layer_types"}) take(read_list(config, key), key);
  take(read_letters(config, kLetterKey), kLetterKey);
  if (!found) return {Kind::kMamba, Kind::kMixture, Kind::kAttention, Kind::kMlp};
  if (!found->empty()) return *found;
  throw FormatError("config.json: found {} of no layers, expected one or more; fix the file",
                    found_key);
}

}  // namespace strata::models
