// lr_scheduler_kwargs of one schedule, read with types and names checked. Never: what they mean.
#pragma once

#include <set>
#include <string>

#include "strata/base/error.h"
#include "strata/optim/lr_schedule.h"

namespace strata::optim {

// Every failure is a ConfigError that names the key and the schedule.
class Kwargs {
 public:
  Kwargs(const ScheduleSettings& settings, std::set<std::string> known) : settings_(settings) {
    for (const auto& [key, value] : settings.kwargs.items()) {
      if (!known.count(key)) {
        throw ConfigError(
            "lr_scheduler_kwargs: found \"{}\", expected {} for "
            "lr_scheduler_type \"{}\"; remove or correct it",
            key, known.empty() ? "none" : fmt::format("one of [{}]", fmt::join(known, ", ")),
            settings.type);
      }
    }
  }
  bool has(const char* key) const {
    return settings_.kwargs.contains(key) && !settings_.kwargs[key].is_null();
  }
  double number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    if (!settings_.kwargs[key].is_number()) fail(key, "a number");
    return settings_.kwargs[key].get<double>();
  }
  // "auto" stands for `automatic`; null and absence for `fallback`.
  double number_or_auto(const char* key, double fallback, double automatic) const {
    if (has(key) && settings_.kwargs[key] == Json("auto")) return automatic;
    return number(key, fallback);
  }
  bool flag(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!settings_.kwargs[key].is_boolean()) fail(key, "true or false");
    return settings_.kwargs[key].get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!settings_.kwargs[key].is_string()) fail(key, "a string");
    return settings_.kwargs[key].get<std::string>();
  }
  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    throw ConfigError(
        "lr_scheduler_kwargs: found \"{}\" {}, expected {} for lr_scheduler_type "
        "\"{}\"; add or correct it",
        key, has(key) ? settings_.kwargs[key].dump() : "missing", expected, settings_.type);
  }

 private:
  const ScheduleSettings& settings_;
};

}  // namespace strata::optim
