#include "strata/config/deepspeed/autos.h"

#include <fmt/format.h>

namespace strata::config {
namespace {

void add_scheduler_autos(const DsEntry& params, std::vector<DsAuto>& autos) {
  if (!params.value.is_object()) return;
  for (const auto& [name, value] : params.value.items()) {
    if (value != Json("auto")) continue;
    DsAuto one{.source = fmt::format("{} ({}.{})", params.place, params.path, name)};
    if (name == "warmup_max_lr") one.settings = {"learning_rate"};
    if (name == "warmup_num_steps") one.settings = {"warmup_steps"};
    if (name == "warmup_min_lr") one.meaning = "0";
    if (name == "total_num_steps") one.meaning = "the steps of the run";
    autos.push_back(std::move(one));
  }
}

}  // namespace

std::vector<DsAuto> autos_of(const DsFile& file) {
  std::vector<DsAuto> autos;
  for (const DsEntry& entry : file.entries) {
    if (entry.path == "scheduler.params") add_scheduler_autos(entry, autos);
    if (!entry.is_auto) continue;
    DsAuto one{.source = entry.source(), .settings = {}};
    const std::string rule(entry.key->automatic);
    if (entry.path == "train_batch_size") {
      one.settings = {"per_device_train_batch_size", "gradient_accumulation_steps"};
    } else if (rule == "adam_beta1 and adam_beta2") {
      one.settings = {"adam_beta1", "adam_beta2"};
    } else if (!rule.starts_with('(')) {
      one.settings = {rule};
    }
    autos.push_back(std::move(one));
  }
  return autos;
}

}  // namespace strata::config
