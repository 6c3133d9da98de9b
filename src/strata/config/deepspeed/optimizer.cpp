// Rules and parameters of DeepSpeed 0.19.8 (runtime/engine.py).
#include "strata/config/deepspeed/optimizer.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "strata/base/error.h"
#include "strata/config/deepspeed/file_value.h"
#include "strata/config/optim_args.h"

namespace strata::config {
namespace {

void require_adamw(const DsEntry& type, const Merge& merge) {
  const Given* optim = merge.find("optim");
  const std::set<std::string> same = {"adamw_torch", "adamw_torch_fused", "paged_adamw",
                                      "paged_adamw_32bit"};
  if (!optim || same.contains(canonical_text(*optim))) return;
  throw ConfigError("{}: found {} with {} {}, expected the same; remove one", type.source(),
                    ds_text(type.value), optim->origin.source, canonical_text(*optim));
}

void take_betas(const DsFile& file, Merge& merge) {
  const DsEntry* betas = file.find("optimizer.params.betas");
  if (!betas || betas->is_auto) return;
  if (betas->value.size() != 2 || !betas->value[0].is_number() || !betas->value[1].is_number()) {
    throw ConfigError("{}: found {}, expected two numbers", betas->source(), betas->value.dump());
  }
  take_value(*betas, "adam_beta1", ds_text(betas->value[0]), merge);
  take_value(*betas, "adam_beta2", ds_text(betas->value[1]), merge);
}

void take_momentum(const DsFile& file, bool is_sgd, Merge& merge) {
  SgdArgs args;
  const DsEntry* first = nullptr;
  const auto find = [&](const char* path) {
    const DsEntry* entry = file.find(path);
    if (entry && !is_sgd) {
      throw ConfigError(
          "{}: found {} in a block that is not of SGD, expected it there alone; "
          "remove it",
          entry->source(), ds_text(entry->value));
    }
    if (entry && !first) first = entry;
    return entry;
  };
  if (const DsEntry* entry = find("optimizer.params.momentum")) {
    args.momentum = entry->value.get<double>();
  }
  if (const DsEntry* entry = find("optimizer.params.dampening")) {
    args.dampening = entry->value.get<double>();
  }
  if (const DsEntry* entry = find("optimizer.params.nesterov")) {
    args.nesterov = entry->value.get<bool>();
  }
  if (!first) return;
  if (args.momentum == 0 && (args.nesterov || args.dampening != 0)) {
    throw ConfigError(
        "{}: found {} without a momentum above 0, expected one with it; add "
        "\"momentum\"",
        first->source(), ds_text(first->value));
  }
  const std::string text = sgd_args_text(args);
  if (text.empty()) return;
  (void)parse_sgd_args(text, first->source());
  take_value(*first, "optim_args", text, merge);
}

// Trainer hands DeepSpeed the parameters as one list where the file names the optimizer, in place
// of its groups with and without decay (transformers integrations/deepspeed.py,
// deepspeed_optim_sched). Who says otherwise is heard.
void decay_all(const DsEntry& type, Merge& merge) {
  if (merge.find_given("decay_norms_and_biases")) return;
  merge.add(make_given("decay_norms_and_biases", "true", {Rank::kImplied, type.source()}));
}

}  // namespace

void translate_optimizer(const DsFile& file, Merge& merge) {
  const DsEntry* type = file.find("optimizer.type");
  if (!type && file.has_block("optimizer")) {
    throw ConfigError("{}: found an optimizer without a type, expected one; add \"type\"",
                      file.name);
  }
  if (!type) return;
  std::string name = ds_text(type->value);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const DsEntry* decoupled = file.find("optimizer.params.adam_w_mode");
  const bool is_plain_adam = name == "adam" && decoupled && decoupled->value == Json(false);
  if ((name == "adam" || name == "adamw") && !is_plain_adam) {
    require_adamw(*type, merge);
  } else {
    static const std::map<std::string, std::string> kNames = {
        {"adam", "adam"}, {"lion", "lion_32bit"}, {"sgd", "sgd"}};
    const auto known = kNames.find(name);
    if (known == kNames.end()) {
      throw ConfigError(
          "{}: found {}, expected AdamW, Adam, Lion or SGD; choose one of them, or leave the "
          "block out and set optim",
          type->source(), type->value.dump());
    }
    take_value(*type, "optim", known->second, merge);
  }
  take_betas(file, merge);
  take_momentum(file, name == "sgd", merge);
  decay_all(*type, merge);
}

}  // namespace strata::config
