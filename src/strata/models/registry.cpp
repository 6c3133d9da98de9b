#include "strata/models/registry.h"

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/model.h"

namespace strata::models {
namespace {

using Create = std::unique_ptr<Model> (*)(const Json& config, const ModelOptions& options);

template <LlamaConfig (*parse)(const Json&)>
std::unique_ptr<Model> create_llama(const Json& json, const ModelOptions& options) {
  LlamaConfig config = parse(json);
  config.rope.buffer_type = options.buffers;
  return std::make_unique<LlamaModel>(config, options.storage);
}

const std::map<std::string, Create>& families() {
  static const std::map<std::string, Create> kFamilies{
      {"llama", create_llama<parse_llama_config>},
      {"mistral", create_llama<parse_mistral_config>},
      {"qwen2", create_llama<parse_qwen2_config>},
      {"qwen3", create_llama<parse_qwen3_config>}};
  return kFamilies;
}

}  // namespace

std::vector<std::string> supported_model_types() {
  std::vector<std::string> names;
  for (const auto& [name, create] : families()) names.push_back(name);
  return names;
}

std::unique_ptr<Model> create_model(const Json& config, const ModelOptions& options) {
  const std::string type = ConfigReader(config).text("model_type", "");
  const auto family = families().find(type);
  if (family == families().end()) {
    throw ConfigError(
        "config.json: found model_type \"{}\", expected one of {}; use a checkpoint of "
        "one of these families",
        type, fmt::join(supported_model_types(), ", "));
  }
  return family->second(config, options);
}

}  // namespace strata::models
