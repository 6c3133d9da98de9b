#include "strata/config/translate_kwargs.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/base/text_distance.h"
#include "strata/config/foreign_names.h"

namespace strata::config {
namespace {

struct InnerKey {
  std::string_view name, setting;
};

// The first two are those of older versions of TRL.
constexpr InnerKey kDatasetKeys[] = {{"add_special_tokens", "add_special_tokens"},
                                     {"append_concat_token", "append_concat_token"},
                                     {"skip_prepare_dataset", "skip_prepare_dataset"}};
// What from_pretrained takes.
constexpr InnerKey kModelKeys[] = {{"dtype", "dtype"},
                                   {"torch_dtype", "dtype"},
                                   {"attn_implementation", "attn_implementation"},
                                   {"trust_remote_code", "trust_remote_code"},
                                   {"revision", "model_revision"},
                                   {"cache_dir", "cache_dir"},
                                   {"use_cache", "use_cache"},
                                   {"load_in_4bit", "load_in_4bit"},
                                   {"load_in_8bit", "load_in_8bit"}};
// transformers' AcceleratorConfig, which every dump of TrainingArguments holds.
constexpr InnerKey kAcceleratorKeys[] = {
    {"split_batches", "split_batches"},
    {"dispatch_batches", "dispatch_batches"},
    {"even_batches", "even_batches"},
    {"use_seedable_sampler", "use_seedable_sampler"},
    {"non_blocking", "non_blocking"},
    {"gradient_accumulation_kwargs", "gradient_accumulation_kwargs"}};

// "run.yaml:3 (model_init_kwargs.dtype)", "--model_init_kwargs.dtype".
std::string place_of(const Given& kwargs, const std::string& key) {
  const std::string name(kwargs.setting->name);
  const std::string& source = kwargs.origin.source;
  if (source.ends_with(name)) return source + "." + key;
  return fmt::format("{} ({}.{})", source, name, key);
}

[[noreturn]] void throw_unknown(const std::string& place, const std::string& key,
                                std::span<const InnerKey> known) {
  std::vector<std::string> names;
  for (const InnerKey& one : known) names.emplace_back(one.name);
  std::string advice = foreign_advice(key);
  if (const auto near = closest(key, names); advice.empty() && near) {
    advice = "did you mean " + *near + "?";
  }
  throw ConfigError("{}: found an unknown key, expected one of {}{}{}", place,
                    fmt::join(names, ", "), advice.empty() ? "" : "; ", advice);
}

std::string plain_text(const Json& value, std::string_view setting, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  // What fills no field is told from values that ask for nothing as it stands there.
  const bool is_unbound = get_setting(setting).kind == Kind::kUnbound;
  if (value.is_boolean() || value.is_number() || is_unbound) return value.dump();
  throw ConfigError("{}: found {}, expected a text, a number, true or false", place, value.dump());
}

Json read_object(const Given& kwargs) {
  const std::string subject = named_source(kwargs), text = canonical_text(kwargs);
  if (text.empty() || text == "none" || text == "None" || text == "null") return Json::object();
  Json object;
  try {
    object = parse_json(text, subject);
  } catch (const FormatError& error) {
    throw ConfigError(error.what());
  }
  if (object.is_object()) return object;
  throw ConfigError("{}: found {}, expected a mapping of its keys (a JSON object)", subject, text);
}

void translate_mapping(Merge& merge, const std::string& name, std::span<const InnerKey> known) {
  const Given* found = merge.find(name);
  if (!found) return;
  const Given kwargs = *found;
  const Json object = read_object(kwargs);
  for (const auto& [key, value] : object.items()) {
    const std::string place = place_of(kwargs, key);
    const auto inner = std::ranges::find(known, key, &InnerKey::name);
    if (inner == known.end()) throw_unknown(place, key, known);
    if (value.is_null()) continue;
    merge.add(make_given(std::string(inner->setting), plain_text(value, inner->setting, place),
                         {kwargs.origin.rank, place}));
  }
}

void take_every_n_layers(const Json& value, const std::string& place) {
  const int64_t every = value.is_number_integer() ? value.get<int64_t>() : 0;
  if (every == 1) return;
  if (every > 1) {
    throw ConfigError(
        "{}: found {}, expected 1; to recompute some of the layers use "
        "gradient_checkpointing_layers N (the first N)",
        place, value.dump());
  }
  throw ConfigError("{}: found {}, expected a whole number of at least 1", place, value.dump());
}

// What Trainer takes out of it; the rest is torch.utils.checkpoint's, whose function is not used.
void translate_checkpointing_kwargs(Merge& merge, std::vector<std::string>& warnings) {
  const auto read = [&](const char* name) {
    const Given* found = merge.find(name);
    return found == nullptr ? Json::object() : read_object(*found);
  };
  const char *name = "activation_checkpointing_kwargs", *old = "gradient_checkpointing_kwargs";
  Json object = read(name);
  const Json of_old = read(old);
  if (object.empty()) {
    std::swap(name, old);
    object = of_old;
  } else if (!of_old.empty() && of_old != object) {
    warnings.push_back(fmt::format("{}: has no effect; {} is given", merge.source(old), name));
  }
  if (object.empty()) return;
  const Given kwargs = *merge.find(name);
  if (merge.text("gradient_checkpointing") == "false") {
    warnings.push_back(fmt::format("{}: has no effect; nothing is recomputed", merge.source(name)));
    return;
  }
  for (const auto& [key, value] : object.items()) {
    const std::string place = place_of(kwargs, key);
    if (value.is_null()) continue;
    if (key == "every_n_layers") {
      take_every_n_layers(value, place);
    } else if (key != "offload") {
      warnings.push_back(place + ": has no effect; recomputation has no variants");
    } else if (!value.is_boolean()) {
      throw ConfigError("{}: found {}, expected true or false", place, value.dump());
    } else if (value.get<bool>()) {
      merge.add(make_given("activation_offloading", "true", {kwargs.origin.rank, place}));
    }
  }
}

}  // namespace

void translate_kwargs(Merge& merge, std::vector<std::string>& warnings) {
  translate_checkpointing_kwargs(merge, warnings);
  translate_mapping(merge, "dataset_kwargs", kDatasetKeys);
  translate_mapping(merge, "model_init_kwargs", kModelKeys);
  translate_mapping(merge, "accelerator_config", kAcceleratorKeys);
}

}  // namespace strata::config
