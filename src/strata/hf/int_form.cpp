#include "strata/hf/int_form.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "strata/base/error.h"
#include "strata/hf/quantization_entry.h"

namespace strata::hf {
namespace {

constexpr int64_t kWholeRow = 0;

std::string in_small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Whichever of two names of a key is there.
const char* named(const Json& entry, const char* key, const char* other) {
  return value_of(entry, key) == nullptr && value_of(entry, other) != nullptr ? other : key;
}

void require_format(const Json& entry, const char* key,
                    std::initializer_list<const char*> expected) {
  const Json* value = value_of(entry, key);
  if (value == nullptr) return;
  const std::string text = in_small_letters(text_of(entry, key));
  if (std::ranges::find(expected, text) == expected.end()) {
    refuse_value(key, *value, *expected.begin());
  }
}

// Codes that no two words share. 3 bits are laid out in another way by each program.
int64_t bits_of(const Json& entry, const std::string& prefix, const char* key) {
  const Json* bits = value_of(entry, key);
  if (bits != nullptr && (*bits == 2 || *bits == 4 || *bits == 8)) return bits->get<int64_t>();
  refuse_value(prefix + key, bits == nullptr ? Json() : *bits, "4 or 8 (or 2)");
}

int64_t group_of(const Json& entry, const std::string& prefix, const char* key, int64_t missing) {
  const Json* size = value_of(entry, key);
  if (size == nullptr) return missing;
  if (*size == -1) return kWholeRow;
  if (!is_size(*size)) {
    throw ConfigError(
        "config.json: quantization_config: {}{}: found {}, expected a positive whole number, or -1 "
        "for all of a row; correct it",
        prefix, key, dump_python(*size, -1));
  }
  return size->get<int64_t>();
}

// What lies in a file in another way than the reference's own programs read.
void require_plain_gptq(const Json& entry, const std::string& prefix) {
  const auto refuse = [&](const char* key, std::string_view expected) {
    refuse_value(prefix + key, *value_of(entry, key), expected);
  };
  const Json* type = value_of(entry, "pack_dtype");
  if (type != nullptr && *type != "int32") refuse("pack_dtype", "int32");
  const Json* marlin = value_of(entry, "is_marlin_format");
  if (marlin != nullptr && *marlin != false) refuse("is_marlin_format", "false");
  const Json* adapter = value_of(entry, "adapter");
  if (adapter != nullptr && !adapter->empty()) refuse("adapter", "none");
}

// GPTQModel's settings of single layers, by expressions for their names; "-:" leaves one plain.
void add_dynamic(const Json& entry, IntForm& form) {
  const Json* dynamic = value_of(entry, "dynamic");
  if (dynamic == nullptr) return;
  if (!dynamic->is_object()) refuse_value("dynamic", *dynamic, "an object");
  for (const auto& [pattern, settings] : dynamic->items()) {
    if (pattern.starts_with("-:")) continue;
    const std::string prefix = "dynamic." + pattern + ".";
    if (!settings.is_object()) refuse_value("dynamic." + pattern, settings, "an object");
    require_plain_gptq(settings, prefix);
    for (const char* key : {"format", "checkpoint_format", "method", "quant_method"}) {
      const Json* value = value_of(settings, key);
      if (value != nullptr) refuse_value(prefix + key, *value, "none of its own");
    }
    IntScheme scheme = form.schemes[0];
    if (value_of(settings, "bits") != nullptr) scheme.bits = bits_of(settings, prefix, "bits");
    scheme.group = group_of(settings, prefix, "group_size", scheme.group);
    form.schemes.push_back(scheme);
  }
}

IntForm of_gptq(const Json& entry) {
  require_plain_gptq(entry, "");
  const char* format = named(entry, "checkpoint_format", "format");
  require_format(entry, format, {"gptq", "gptq_v2"});
  IntForm form{.layout = IntLayout::kGptq,
               .zeros_are_less = in_small_letters(text_of(entry, format)) != "gptq_v2",
               .schemes = {}};
  const Json* by_activations = value_of(entry, "desc_act");
  form.schemes.push_back({.bits = bits_of(entry, "", "bits"),
                          .group = group_of(entry, "", "group_size", 128),
                          .has_order = by_activations != nullptr && *by_activations == true});
  add_dynamic(entry, form);
  return form;
}

IntForm of_awq(const Json& entry) {
  require_plain_gptq(entry, "");
  require_format(entry, named(entry, "version", "format"), {"gemm"});
  const Json* backend = value_of(entry, "backend");
  if (backend != nullptr && *backend == "llm-awq") refuse_value("backend", *backend, "autoawq");
  const Json* bits = value_of(entry, named(entry, "bits", "w_bit"));
  if (bits != nullptr && *bits != 4) refuse_value(named(entry, "bits", "w_bit"), *bits, "4");
  const int64_t group = group_of(entry, "", named(entry, "group_size", "q_group_size"), 128);
  return {.layout = IntLayout::kAwq, .schemes = {{.bits = 4, .group = group}}};
}

IntScheme scheme_of_group(const std::string& prefix, const Json& weights) {
  const auto refuse = [&](const char* key, std::string_view expected) {
    const Json* value = value_of(weights, key);
    refuse_value(prefix + key, value == nullptr ? Json() : *value, expected);
  };
  const auto is_off = [&](const char* key) {
    const Json* value = value_of(weights, key);
    return value == nullptr || *value == false;
  };
  const std::string type = in_small_letters(text_of(weights, "type"));
  if (type != "int" && value_of(weights, "type") != nullptr) refuse("type", "int");
  if (!is_off("dynamic")) refuse("dynamic", "false");
  const Json* symmetric = value_of(weights, "symmetric");
  IntScheme scheme{.bits = bits_of(weights, prefix, "num_bits"),
                   .group = group_of(weights, prefix, "group_size", kWholeRow),
                   .is_symmetric = symmetric == nullptr || *symmetric != false,
                   .has_order = in_small_letters(text_of(weights, "actorder")) == "group"};
  const std::string strategy = in_small_letters(text_of(weights, "strategy"));
  const bool is_known = strategy.empty() ? value_of(weights, "strategy") == nullptr
                                         : strategy == "group" || strategy == "channel";
  if (!is_known) refuse("strategy", "group or channel");
  if (strategy == "channel") scheme.group = kWholeRow;
  if (strategy == "group" && scheme.group == kWholeRow) {
    refuse("group_size", "a positive whole number with the strategy group");
  }
  return scheme;
}

IntForm of_compressed_tensors(const Json& entry) {
  require_untransformed(entry);
  const Json* pruned = value_of(entry, "moe_sparsity_config");
  if (pruned != nullptr && !pruned->empty()) refuse_value("moe_sparsity_config", *pruned, "none");
  IntForm form{.layout = IntLayout::kCompressed, .schemes = {}};
  const Json* groups = value_of(entry, "config_groups");
  if (groups != nullptr && groups->is_object()) {
    for (const auto& [name, group] : groups->items()) {
      const std::string key = "config_groups." + name;
      if (!group.is_object()) refuse_value(key, group, "an object that says how weights are held");
      const Json* format = value_of(group, "format");
      if (format != nullptr && *format != "pack-quantized") {
        refuse_value(key + ".format", *format, "pack-quantized");
      }
      const Json* weights = value_of(group, "weights");
      if (weights != nullptr) form.schemes.push_back(scheme_of_group(key + ".weights.", *weights));
    }
  }
  if (form.schemes.empty()) {
    refuse_value("config_groups", groups == nullptr ? Json() : *groups, "one with weights");
  }
  return form;
}

}  // namespace

bool announces_ints(const Json& model_config) {
  const Json* entry = quantization_entry(model_config);
  if (entry == nullptr || !entry->is_object()) return false;
  const std::string method = text_of(*entry, "quant_method");
  if (method == "gptq" || method == "awq") return true;
  return method == "compressed-tensors" && text_of(*entry, "format") == "pack-quantized";
}

std::string describe(const IntScheme& scheme) {
  if (scheme.group == 0) return fmt::format("{} bits with a scale of each row", scheme.bits);
  return fmt::format("{} bits in groups of {}", scheme.bits, scheme.group);
}

IntForm read_int_form(const Json& model_config) {
  const Json& entry = *quantization_entry(model_config);
  const std::string method = text_of(entry, "quant_method");
  if (method == "compressed-tensors") return of_compressed_tensors(entry);
  return method == "awq" ? of_awq(entry) : of_gptq(entry);
}

}  // namespace strata::hf
