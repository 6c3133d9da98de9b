#include "strata/launch/slurm_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <vector>

#include "strata/base/error.h"

namespace strata::launch {
namespace {

// Nothing for another text than digits; so many that no cluster means them are another text, too.
std::optional<int64_t> whole_number(std::string_view text) {
  constexpr size_t kMostDigits = 9;
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const bool is_whole = read.ec == std::errc() && read.ptr == end && text[0] != '-';
  return is_whole && text.size() <= kMostDigits ? std::optional(number) : std::nullopt;
}

// "1:30:00" as 1, 30, 0; nothing where a part is no number.
std::optional<std::vector<int64_t>> parts_of(std::string_view text) {
  std::vector<int64_t> parts;
  while (true) {
    const size_t colon = text.find(':');
    const auto number = whole_number(text.substr(0, colon));
    if (!number) return std::nullopt;
    parts.push_back(*number);
    if (colon == text.npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

bool is_unlimited(std::string_view text) {
  std::string low(text);
  std::ranges::transform(low, low.begin(), [](unsigned char c) { return std::tolower(c); });
  return low == "unlimited" || low == "infinite";
}

void require_time(const config::SlurmConfig& slurm) {
  const auto seconds = slurm_seconds(slurm.time);
  if (!seconds) {
    throw ConfigError(
        "--time: found \"{}\", expected MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, "
        "DAYS-HOURS, DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS; write it like 24:00:00",
        slurm.time);
  }
  if (*seconds == 0 || *seconds > slurm.stop_seconds) return;
  throw ConfigError(
      "--time: found {} ({} seconds), expected more than --stop_seconds ({}), the seconds before "
      "the limit at which the ranks save and stop; raise --time, or lower --stop_seconds",
      slurm.time, *seconds, slurm.stop_seconds);
}

void require_container(const config::SlurmConfig& slurm) {
  if (!slurm.container_image.empty()) return;
  const bool has_mounts = !slurm.container_mounts.empty();
  if (!has_mounts && slurm.container_runtime == config::ContainerRuntime::kAuto) return;
  throw ConfigError(
      "--{}: found {} without --container_image, expected the image in which the program runs; add "
      "--container_image, or remove it",
      has_mounts ? "container_mounts" : "container_runtime",
      has_mounts ? slurm.container_mounts : std::string(config::name_of(slurm.container_runtime)));
}

}  // namespace

std::optional<int64_t> slurm_seconds(std::string_view text) {
  if (is_unlimited(text)) return 0;
  constexpr int64_t kMinute = 60, kHour = 3600, kDay = 86400;
  std::optional<int64_t> days;
  if (const size_t dash = text.find('-'); dash != text.npos) {
    days = whole_number(text.substr(0, dash));
    if (!days) return std::nullopt;
    text.remove_prefix(dash + 1);
  }
  const auto parts = parts_of(text);
  if (!parts || parts->size() > 3) return std::nullopt;
  // After days the first part is hours. Else the last of several is seconds, a lone one minutes.
  std::vector<int64_t> units = {kHour, kMinute, 1};
  if (!days && parts->size() < 3) units = {kMinute, 1};
  int64_t seconds = days.value_or(0) * kDay;
  for (size_t i = 0; i < parts->size(); ++i) seconds += (*parts)[i] * units[i];
  return seconds;
}

bool is_slurm_memory(std::string_view text) {
  if (text.ends_with('B') || text.ends_with('b')) {
    text.remove_suffix(1);
    if (text.empty() || std::isdigit(static_cast<unsigned char>(text.back()))) return false;
  }
  const bool has_unit =
      !text.empty() && std::string_view("kKmMgGtT").find(text.back()) != std::string_view::npos;
  if (has_unit) text.remove_suffix(1);
  return whole_number(text).has_value();
}

void require_slurm_options(const config::SlurmConfig& slurm) {
  if (slurm.job_name.empty()) {
    throw ConfigError(
        "--job_name: found an empty name, expected one; give one, or leave the flag out (strata)");
  }
  if (!slurm.time.empty()) require_time(slurm);
  if (!slurm.mem.empty() && !is_slurm_memory(slurm.mem)) {
    throw ConfigError(
        "--mem: found \"{}\", expected a whole number followed by K, M, G or T (none: M), or 0 for "
        "all of a machine; write it like 200G",
        slurm.mem);
  }
  require_container(slurm);
}

}  // namespace strata::launch
