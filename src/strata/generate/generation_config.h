// What a model's files say about generation: generation_config.json, or the same keys of
// config.json where that is missing. Never: what the user asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace strata::generate {

struct GenerationConfig {
  std::string source;  // name of the file
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_new_tokens;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::vector<int32_t> eos_ids;
  // What answers of models with an encoder follow; the reference takes bos_id in the first one's
  // place. Training starts from that of config.json.
  std::optional<int64_t> decoder_start_id, bos_id;
  // The first token of an answer, and the last one that it may have: for answers of models of
  // encoder and decoder.
  std::vector<int32_t> forced_bos_ids, forced_eos_ids;
  std::vector<int32_t> banned_ids;  // tokens that no such answer has (bad_words_ids of one token)
  // Settings of the file that change the reference's answers and are not applied here, a sentence
  // each.
  std::vector<std::string> notes;
  std::vector<std::string> forced_notes;  // the same of forced and banned tokens
};

// FormatError for a value of the wrong type.
GenerationConfig read_generation_config(const std::filesystem::path& folder);

}  // namespace strata::generate
