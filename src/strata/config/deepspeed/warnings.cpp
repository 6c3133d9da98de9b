#include "strata/config/deepspeed/warnings.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"

namespace strata::config {
namespace {

void warn_of_buckets(const DsFile& file, std::vector<std::string>& warnings) {
  const DsEntry* reduce = file.find("zero_optimization.reduce_bucket_size");
  const DsEntry* gather = file.find("zero_optimization.allgather_bucket_size");
  if (gather && gather->value.get<double>() != 2 * std::floor(gather->value.get<double>() / 2)) {
    throw ConfigError("{}: found {}, expected an even number", gather->source(),
                      ds_text(gather->value));
  }
  double elements = 0;
  std::vector<std::string> names;
  for (const DsEntry* entry : {reduce, gather}) {
    if (!entry || entry->is_auto) continue;
    elements += entry->value.get<double>();
    names.push_back(fmt::format("{} {}", entry->path.substr(entry->path.rfind('.') + 1),
                                ds_text(entry->value)));
  }
  if (names.empty()) return;
  warnings.push_back(
      fmt::format("{}: no effect here: {}; gradients are reduced unit by unit (DeepSpeed with "
                  "overlap_comm holds 4.5 x {} x 2 bytes = {:.1f} GB for them)",
                  file.name, fmt::join(names, ", "), ds_text(elements), 9 * elements / 1e9));
}

bool is_switched_off(const DsFile& file, const DsEntry& entry) {
  if (entry.value.is_object()) return entry.value.value("enabled", Json()) == Json(false);
  return entry.value == Json(false) || file.is_disabled(entry.path.substr(0, entry.path.find('.')));
}

void warn_of_inert(const DsFile& file, bool uses_files, std::vector<std::string>& warnings) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> reasons;
  const auto add = [&](std::string_view reason, const std::string& path) {
    auto found = std::ranges::find(reasons, reason, [](const auto& row) { return row.first; });
    if (found == reasons.end()) found = reasons.insert(found, {reason, {}});
    found->second.push_back(path);
  };
  for (const DsEntry& entry : file.entries) {
    if (entry.is_auto || entry.value.is_null() || is_switched_off(file, entry)) continue;
    if (entry.key->use == DsUse::kNoEffect) add(entry.key->text, entry.path);
    if (entry.path.starts_with("fp16.") && !file.find("fp16.enabled")) {
      add("fp16 is off without fp16.enabled", entry.path);
    }
    const bool is_of_files =
        entry.path == "zero_optimization.sub_group_size" || entry.path.starts_with("aio.");
    if (entry.key->use == DsUse::kCode && is_of_files && !uses_files) {
      add("nothing is kept in files (no offload device is nvme)", entry.path);
    }
  }
  for (const auto& [reason, paths] : reasons) {
    warnings.push_back(
        fmt::format("{}: no effect here: {}; {}", file.name, fmt::join(paths, ", "), reason));
  }
}

}  // namespace

void warn_of_ineffective(const DsFile& file, bool uses_files, std::vector<std::string>& warnings) {
  warn_of_buckets(file, warnings);
  warn_of_inert(file, uses_files, warnings);
}

}  // namespace strata::config
