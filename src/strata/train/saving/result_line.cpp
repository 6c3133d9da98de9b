#include "strata/train/saving/result_line.h"

#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/shell_word.h"
#include "strata/config/field_text.h"
#include "strata/config/recipes.h"
#include "strata/config/settings/table.h"
#include "strata/train/saving/result_pages.h"

namespace strata::train {
namespace {

// What the base was loaded with, where that is not the default: without it, chat would take several
// times the memory of training.
void add_quantization(const config::RunConfig& config, std::vector<std::string>& words) {
  if (!config.quantization.load_in_4bit && !config.quantization.load_in_8bit) return;
  const config::RunConfig defaults;
  for (const config::Setting& setting : config::chat_settings_table()) {
    const std::string_view name = setting.name;
    const bool is_meant =
        name == "load_in_4bit" || name == "load_in_8bit" ||
        name.starts_with(config.quantization.load_in_4bit ? "bnb_4bit_" : "llm_int8_");
    if (!is_meant) continue;
    const std::string value = config::field_text(setting, config);
    if (value == config::field_text(setting, defaults)) continue;
    words.push_back(fmt::format("--{}", name));
    if (value != "true") words.push_back(value);
  }
}

// Empty where nothing answers from the result: a head for whole texts, an encoder, an adapter that
// must be converted first (a note of the run says how).
std::string chat_command(const config::RunConfig& config, bool is_adapter) {
  const config::RecipeRow& recipe = config::recipe_of(config);
  const std::string& base = config.model.model_name_or_path;
  const bool is_converted_first =
      is_adapter && config.lora.init_lora_weights.starts_with("pissa_niter_");
  if (recipe.has_encoder || recipe.judges_documents() || is_converted_first) return "";
  if (is_adapter && base.empty()) return "";
  const std::string& result = config.train.output_dir;
  std::vector<std::string> words{"strata", "chat", "--model_name_or_path",
                                 is_adapter ? base : result};
  if (is_adapter) {
    words.insert(words.end(), {"--adapter_name_or_path", result});
    if (!config.model.cache_dir.empty()) {
      words.insert(words.end(), {"--cache_dir", config.model.cache_dir});
    }
    add_quantization(config, words);
  }
  for (std::string& word : words) word = shell_word(word);
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

std::string result_line(const config::RunConfig& config, bool is_adapter) {
  const std::filesystem::path folder = config.train.output_dir;
  std::string line = fmt::format("result: {} ({}); report: {}", folder.string(),
                                 is_adapter ? "adapter" : "model", (folder / kReportFile).string());
  const std::string command = chat_command(config, is_adapter);
  return command.empty() ? line : fmt::format("{}; try it: {}", line, command);
}

}  // namespace strata::train
