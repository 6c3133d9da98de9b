#include "strata/config/deepspeed/precision.h"

#include <cmath>
#include <string_view>

#include "strata/base/error.h"
#include "strata/config/deepspeed/file_value.h"

namespace strata::config {
namespace {

struct ScaleKey {
  const char *key, *setting, *fallback;
};

constexpr ScaleKey kScaleKeys[] = {{"fp16.loss_scale", "fp16_loss_scale", "0"},
                                   {"fp16.initial_scale_power", "fp16_initial_scale", "65536"},
                                   {"fp16.loss_scale_window", "fp16_scale_window", "1000"},
                                   {"fp16.hysteresis", "fp16_hysteresis", "2"},
                                   {"fp16.min_loss_scale", "fp16_min_scale", "1"}};

void add_default(const ScaleKey& row, const std::string& source, Merge& merge) {
  if (!find_setting(row.setting)) return;
  merge.add(
      make_given(row.setting, row.fallback, {Rank::kImplied, "DeepSpeed's default, by " + source}));
}

// "true" as the file says it; not where it leaves it to the flags.
bool is_on(const DsEntry* enabled) { return enabled && enabled->value == Json(true); }

void require_no_flag(const DsEntry* enabled, const char* other, const Merge& merge) {
  if (!is_on(enabled)) return;
  const Given* flag = merge.find(other);
  if (!flag || flag->origin.rank < Rank::kEnvironment || canonical_text(*flag) != "true") return;
  // A choice among precisions does not have this one's name.
  const std::string source = named_source(*flag);
  const bool is_its_own = source.find(other) != std::string::npos;
  const std::string request =
      is_its_own ? source + " true" : fmt::format("{}, which asks for {}", source, other);
  throw ConfigError(
      "{}: found true with {}, expected one precision; correct one, or write \"auto\" in the file",
      enabled->source(), request);
}

}  // namespace

void require_one_precision(const DsFile& file, const Merge& merge) {
  const DsEntry* fp16 = file.find("fp16.enabled");
  const DsEntry* bf16 = file.find("bf16.enabled");
  if (is_on(fp16) && is_on(bf16)) {
    throw ConfigError("{}: found true with {}, expected one of them; remove one", fp16->source(),
                      bf16->source());
  }
  require_no_flag(fp16, "bf16", merge);
  require_no_flag(bf16, "fp16", merge);
}

void translate_loss_scale(const DsFile& file, Merge& merge) {
  const DsEntry* enabled = file.find("fp16.enabled");
  const bool is_left_to_flags = enabled ? enabled->is_auto : !file.has_block("fp16");
  if (is_left_to_flags ? merge.text("fp16") != "true" : !is_on(enabled)) return;
  const std::string source = enabled ? enabled->source() : file.name;
  const DsEntry* fixed = file.find("fp16.loss_scale");
  const bool is_fixed = fixed && fixed->value.get<double>() > 0;
  for (const ScaleKey& row : kScaleKeys) {
    if (is_fixed && std::string_view(row.setting) != "fp16_loss_scale") continue;
    const DsEntry* entry = file.find(row.key);
    if (!entry) {
      add_default(row, source, merge);
      continue;
    }
    const bool is_power = std::string_view(row.key) == "fp16.initial_scale_power";
    take_value(*entry, row.setting,
               is_power ? python_float_repr(std::ldexp(1, entry->value.get<int>()))
                        : ds_text(entry->value),
               merge);
  }
}

void add_scale_defaults(const std::string& source, Merge& merge) {
  for (const ScaleKey& row : kScaleKeys) add_default(row, source, merge);
}

}  // namespace strata::config
