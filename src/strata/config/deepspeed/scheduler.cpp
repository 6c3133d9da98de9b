// Types and parameters of DeepSpeed 0.19.8 (runtime/lr_schedules.py).
#include "strata/config/deepspeed/scheduler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"

namespace strata::config {
namespace {

// '!': required; 'a': "auto" has a rule.
struct Type {
  std::string required;
  std::map<std::string, bool> parameters;  // name to whether "auto" is allowed
};

const std::map<std::string, Type>& types() {
  static const std::map<std::string, Type> kTypes = {
      {"WarmupLR",
       {"",
        {{"warmup_min_lr", true},
         {"warmup_max_lr", true},
         {"warmup_num_steps", true},
         {"warmup_type", false}}}},
      {"WarmupDecayLR",
       {"total_num_steps",
        {{"total_num_steps", true},
         {"warmup_min_lr", true},
         {"warmup_max_lr", true},
         {"warmup_num_steps", true},
         {"warmup_type", false}}}},
      {"WarmupCosineLR",
       {"total_num_steps",
        {{"total_num_steps", true},
         {"warmup_min_ratio", false},
         {"warmup_num_steps", true},
         {"cos_min_ratio", false},
         {"warmup_type", false}}}},
      {"OneCycle",
       {"cycle_min_lr",
        {{"cycle_min_lr", false},
         {"cycle_max_lr", false},
         {"decay_lr_rate", false},
         {"cycle_first_step_size", false},
         {"cycle_second_step_size", false},
         {"cycle_first_stair_count", false},
         {"cycle_second_stair_count", false},
         {"decay_step_size", false},
         {"cycle_momentum", false},
         {"cycle_min_mom", false},
         {"cycle_max_mom", false},
         {"decay_mom_rate", false}}}},
      {"LRRangeTest",
       {"",
        {{"lr_range_test_min_lr", false},
         {"lr_range_test_step_size", false},
         {"lr_range_test_step_rate", false},
         {"lr_range_test_staircase", false}}}},
  };
  return kTypes;
}

void check_parameter(const DsEntry& params, const std::string& name, const Json& value,
                     const Type& type) {
  const auto known = type.parameters.find(name);
  if (known == type.parameters.end()) {
    std::vector<std::string> names;
    for (const auto& [other, _] : type.parameters) names.push_back(other);
    const auto near = closest(name, names);
    throw ConfigError("{}: found the unknown key \"{}\", expected one of {}; {}", params.source(),
                      name, fmt::join(names, ", "),
                      near ? "did you mean " + *near + "?" : "remove it");
  }
  if (value == Json("auto") && !known->second) {
    throw ConfigError("{}: found \"auto\" for \"{}\", expected a value", params.source(), name);
  }
}

[[noreturn]] void throw_different(const DsEntry& params, const std::string& name, double value,
                                  const Given& given) {
  throw ConfigError(
      "{}: found {} {} with {} {}, expected the same; correct one, or write \"auto\" in the file",
      params.source(), name, value, given.origin.source, canonical_text(given));
}

// What a flag says must be what the file says.
void require_same(const DsEntry& params, const std::string& name, const Merge& merge,
                  const std::string& setting) {
  if (!params.value.contains(name) || !params.value[name].is_number()) return;
  const Given* given = merge.find(setting);
  if (!given || given->origin.rank < Rank::kEnvironment) return;
  const double value = params.value[name].get<double>();
  if (std::stod(canonical_text(*given)) == value) return;
  throw_different(params, name, value, *given);
}

// The updates of a flag of warm-up; nothing for a part of a run of unknown length.
std::optional<double> flagged_warmup(const Merge& merge, double flag) {
  if (flag >= 1 || flag == 0) return std::floor(flag);
  const double max_steps = std::stod(merge.text("max_steps", "-1"));
  return max_steps > 0 ? std::optional(std::ceil(max_steps * flag)) : std::nullopt;
}

const Given* flag_of(const Merge& merge, const char* setting) {
  const Given* given = merge.find(setting);
  return given && given->origin.rank >= Rank::kEnvironment ? given : nullptr;
}

// Steps count before the ratio where there are some, and DeepSpeed's warm-up has one at least.
void require_same_warmup(const DsEntry& params, const Merge& merge) {
  const char* name = "warmup_num_steps";
  if (!params.value.contains(name) || !params.value[name].is_number()) return;
  const auto number = [](const Given* given) {
    return given ? std::stod(canonical_text(*given)) : 0.0;
  };
  const Given* steps = flag_of(merge, "warmup_steps");
  const Given* ratio = flag_of(merge, "warmup_ratio");
  const Given* given = number(steps) > 0 || number(ratio) == 0 ? steps : ratio;
  if (!given) return;
  const double value = params.value[name].get<double>();
  const std::optional<double> updates = flagged_warmup(merge, number(given));
  if (updates && std::max(1.0, *updates) == std::max(1.0, value)) return;
  throw_different(params, name, value, *given);
}

// Whatever the order of keys.
bool is_same(const Json& one, const Json& other) {
  return nlohmann::json(one) == nlohmann::json(other);
}

// DeepSpeed switches the cycle of momentum off where the update rule has no betas.
Json without_momentum(Json kwargs, bool is_off) {
  if (is_off) kwargs["cycle_momentum"] = false;
  return kwargs;
}

// A flag with a schedule's own settings would take the place of the file's; one without any, which
// is how transformers writes its default, says nothing.
void take_kwargs(const DsEntry& params, bool has_no_momentum, Merge& merge) {
  const Json settled = without_momentum(params.value, has_no_momentum);
  const Given own =
      make_given("lr_scheduler_kwargs", dump_python(settled, /*indent=*/-1, /*sort_keys=*/false),
                 {Rank::kFile, params.source()});
  const Given* given = merge.find("lr_scheduler_kwargs");
  const std::string text = given ? canonical_text(*given) : "";
  Json known = Json::object();
  try {
    if (!text.empty()) known = parse_json(text, given->origin.source);
  } catch (const FormatError& error) {
    throw ConfigError(error.what());
  }
  if (known == Json::object()) return merge.put(own);
  if (given->origin.rank < Rank::kEnvironment) return merge.add(own);
  if (known.is_object() && is_same(without_momentum(known, has_no_momentum), settled)) {
    return merge.put(own);
  }
  throw ConfigError("{}: found {} with {} {}, expected one of them; remove one", params.source(),
                    params.value.dump(), given->origin.source, text);
}

}  // namespace

void translate_scheduler(const DsFile& file, Merge& merge) {
  const DsEntry* type = file.find("scheduler.type");
  const DsEntry* params = file.find("scheduler.params");
  if (!type && !params) return;
  if (!type) {
    throw ConfigError("{}: found a scheduler without a type, expected one; add \"type\"",
                      params->source());
  }
  const std::string name = type->value.get<std::string>();
  const auto known = types().find(name);
  if (known == types().end()) {
    std::vector<std::string> names;
    for (const auto& [other, _] : types()) names.push_back(other);
    const auto near = closest(name, names);
    throw ConfigError("{}: found \"{}\", expected one of {}; {}", type->source(), name,
                      fmt::join(names, ", "),
                      near ? "did you mean " + *near + "?" : "choose one of them");
  }
  if (const Given* given = merge.find("lr_scheduler_type");
      given && given->origin.rank >= Rank::kEnvironment && canonical_text(*given) != name) {
    throw ConfigError("{}: found {} with {} {}, expected one schedule; remove one", type->source(),
                      name, given->origin.source, canonical_text(*given));
  }
  const DsEntry empty{nullptr, "scheduler.params", Json::object(), type->place};
  const DsEntry& given = params && params->value.is_object() ? *params : empty;
  for (const auto& [key, value] : given.value.items()) {
    check_parameter(given, key, value, known->second);
  }
  if (!known->second.required.empty() && !given.value.contains(known->second.required)) {
    throw ConfigError(
        "{}: found no {}, expected one for {}; add it{}", given.source(), known->second.required,
        name, known->second.parameters.at(known->second.required) ? " (\"auto\" will do)" : "");
  }
  require_same(given, "warmup_max_lr", merge, "learning_rate");
  require_same_warmup(given, merge);
  require_same(given, "total_num_steps", merge, "max_steps");
  merge.add(make_given("lr_scheduler_type", name, {Rank::kFile, type->source()}));
  const std::string rule = merge.text("optim");
  take_kwargs(given, name == "OneCycle" && (rule == "sgd" || rule == "adafactor"), merge);
}

}  // namespace strata::config
