#include "strata/models/skipped_modules.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "strata/models/reward_head.h"

namespace strata::models {

SkippedModules::SkippedModules(const SkipModules& entries, const std::string& setting)
    : entries_(entries.value_or(std::vector<std::string>{"lm_head", kRewardLayer})) {
  for (const std::string& entry : entries_) {
    patterns_.push_back(
        std::make_unique<hf::ModulePattern>("(?:" + entry + R"()(?:(?<=\.)|(?=\.|$)).*)", setting));
  }
}

bool SkippedModules::contains(const std::string& path) const {
  constexpr std::string_view kModule = ".experts";  // which has no layers in the reference
  const size_t module = path.find(std::string(kModule) + ".");
  const bool is_expert = module != std::string::npos;
  return is_named(path) || (is_expert && is_named(path.substr(0, module + kModule.size())));
}

bool SkippedModules::is_named(const std::string& path) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (path.ends_with(entries_[i]) || patterns_[i]->matches(path)) return true;
  }
  return false;
}

std::vector<nn::Linear*> quantizable_linears(Model& model) {
  std::multiset<const nn::Parameter*> uses;
  std::vector<nn::Linear*> layers;
  for (Block* block : model.blocks()) {
    for (nn::Parameter* parameter : block->parameters()) uses.insert(parameter);
    for (nn::Linear* layer : block->linears()) layers.push_back(layer);
  }
  const std::vector<std::string> plain = model.never_quantized();
  std::erase_if(layers, [&](const nn::Linear* layer) {
    const bool is_plain = std::ranges::any_of(
        plain, [&](const std::string& end) { return layer->path().ends_with("." + end); });
    return is_plain || uses.count(&layer->weight()) > 1;
  });
  return layers;
}

}  // namespace strata::models
