#include "strata/train/same_inputs.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/xxh3.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/model_folder.h"
#include "strata/hf/weights_fingerprint.h"
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

// Copies of a folder may hold another training of the same model. What cannot be read is an error
// where it is loaded; a rank alone that cannot is told apart here.
std::string weights_line(const std::string& what, const std::filesystem::path& folder) {
  try {
    const hf::ModelFolder files(folder);
    return fmt::format("weights of the {} with content {}\n", what, hf::weights_fingerprint(files));
  } catch (const Error& error) {
    // Without what it expects and advises: another sentence does that, in whose middle this stands.
    const std::string cause = error.what();
    return fmt::format("no weights of the {} ({})\n", what,
                       cause.substr(0, std::min(cause.find('\n'), cause.find(", expected "))));
  }
}

// Of what every rank reads for itself and no name of a state tells.
std::string weights_lines(const config::RunConfig& config, bool has_state) {
  if (config.shard.cpu_ram_efficient_loading) return "";
  const config::ModelConfig& model = config.model;
  std::string lines;
  if (!has_state && !model.model_name_or_path.empty()) {
    lines += weights_line("model", model.model_name_or_path);
  }
  if (std::filesystem::is_directory(model.adapter_name_or_path)) {
    lines += weights_line("adapter", model.adapter_name_or_path);
  }
  return lines;
}

// How often a rank decodes depends on them, and with it what ranks exchange.
std::string answers_line(const config::RunConfig& config) {
  if (!config.train.predict_with_generate) return "";
  const generate::GenerationConfig file = load_generation_config(config.model);
  std::string line =
      fmt::format("answers of {} at most that end with [{}]\n",
                  counted(max_answer_tokens(config, file), "token"), fmt::join(file.eos_ids, ", "));
  if (const auto start = file.decoder_start_id ? file.decoder_start_id : file.bos_id) {
    line += fmt::format("the token before answers {}\n", *start);
  }
  if (file.decoder_notes.empty() && !config.train.generation_num_beams) return line;
  const generate::BeamSettings beams = answer_beams(config, file);
  line += fmt::format(
      "answers by {} with length_penalty {}, early_stopping {} and renormalize_logits {}, no {} "
      "tokens twice, no end before {}\n",
      counted(beams.count, "beam"), beams.length_penalty, static_cast<int>(beams.early_stopping),
      beams.renormalize_logits, file.no_repeat_ngram_size, counted(file.min_new_tokens, "token"));
  return line + fmt::format("tokens that answers have [{}] and [{}], and have not [{}]\n",
                            fmt::join(file.forced_bos_ids, ", "),
                            fmt::join(file.forced_eos_ids, ", "), fmt::join(file.banned_ids, ", "));
}

}  // namespace

std::string inputs_text(const config::RunConfig& config, const Datasets& sets) {
  // Also in the template that stands in for it where rows have tools.
  const bool has_date = sets.chat_template && sets.chat_template->mentions("strftime_now");
  std::string text = rows_line("training", sets.train, has_date);
  for (const data::TokenStore* set : sets.evaluations()) {
    text += rows_line("evaluation", *set, has_date);
  }
  const std::string state = snapshot_line(config.model);
  return text + state + config_line(load_model_config(config.model)) +
         weights_lines(config, !state.empty()) + answers_line(config);
}

}  // namespace strata::train
