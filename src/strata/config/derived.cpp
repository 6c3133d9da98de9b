// Arithmetic on settings.
#include "strata/config/derived.h"

#include <charconv>
#include <cmath>
#include <map>

#include "strata/base/error.h"

namespace strata::config {

int64_t num_warmup_steps(const OptimConfig& optim, int64_t total_steps) {
  if (optim.warmup_steps >= 1) return static_cast<int64_t>(optim.warmup_steps);
  const double fraction = optim.warmup_steps > 0 ? optim.warmup_steps : optim.warmup_ratio;
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * fraction));
}

int64_t interval_steps(double steps, int64_t total_steps) {
  if (steps >= 1) return static_cast<int64_t>(steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * steps));
}

int64_t eval_interval_steps(const TrainConfig& train, int64_t total_steps) {
  return interval_steps(train.eval_steps.value_or(train.logging_steps), total_steps);
}

int64_t size_bytes(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},          {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
  double number = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  auto unit = kUnits.find(std::string(stop, end));
  if (error != std::errc() || unit == kUnits.end() || !(number * unit->second >= 1) ||
      number * unit->second > 9e18) {
    throw ConfigError("size: found \"{}\", expected a size like 50GB, 200MB or 1000000", text);
  }
  return static_cast<int64_t>(number * unit->second);
}

}  // namespace strata::config
