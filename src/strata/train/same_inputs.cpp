#include "strata/train/same_inputs.h"

#include <ctime>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/counted.h"
#include "strata/base/xxh3.h"
#include "strata/hf/hub/model.h"
#include "strata/text/templates/template_marks.h"
#include "strata/train/loop/answers.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/model_config.h"

namespace strata::train {
namespace {

std::string rows_line(std::string_view what, const data::TokenStore& rows, bool has_date) {
  const std::string content = has_date ? "" : fmt::format(" with tokens {}", rows.content());
  return fmt::format("{} of {} data{}\n", counted(static_cast<int64_t>(rows.size()), "row"), what,
                     content);
}

// Of a name on the Hub: machines that downloaded it on other days may have other states of it.
std::string snapshot_line(const config::ModelConfig& model) {
  if (model.model_name_or_path.empty()) return "";
  const std::filesystem::path folder = hf::locate_model(model.model_name_or_path, hub_place(model));
  if (folder.parent_path().filename() != "snapshots") return "";
  return fmt::format("model in the state {} of the Hub\n", folder.filename().string());
}

// Without what changes nothing that is computed.
std::string config_line(Json model_config) {
  for (const char* key : {"_name_or_path", "transformers_version"}) model_config.erase(key);
  Xxh3 hash;
  hash.update(model_config.dump());
  return fmt::format("config.json of the model with content {}\n", hash.text_64());
}

// How often a rank decodes depends on them, and with it what ranks exchange.
std::string answers_line(const config::RunConfig& config) {
  if (!config.train.predict_with_generate) return "";
  const generate::GenerationConfig file = load_generation_config(config.model);
  std::string line =
      fmt::format("answers of {} at most that end with [{}]\n",
                  counted(max_answer_tokens(config, file), "token"), fmt::join(file.eos_ids, ", "));
  if (file.forced_notes.empty()) return line;
  return line + fmt::format("tokens that answers have [{}] and [{}]\n",
                            fmt::join(file.forced_bos_ids, ", "),
                            fmt::join(file.forced_eos_ids, ", "));
}

}  // namespace

std::string inputs_text(const config::RunConfig& config, const Datasets& sets) {
  const bool has_date = !text::dates_of(sets.chat_template_source, std::time(nullptr)).empty();
  std::string text = rows_line("training", sets.train, has_date);
  for (const data::TokenStore* set : sets.evaluations()) {
    text += rows_line("evaluation", *set, has_date);
  }
  return text + snapshot_line(config.model) + config_line(load_model_config(config.model)) +
         answers_line(config);
}

}  // namespace strata::train
