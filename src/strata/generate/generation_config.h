// What a model's files say about generation: generation_config.json, or the same keys of
// config.json where that is missing. Never: what the user asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace strata::generate {

// When the beams of an answer are searched no longer, once there are as many answers as beams: when
// a better one is unlikely by the length so far; at once; when there cannot be one.
enum class EarlyStopping { kLikely, kWhenFull, kNever };

struct BeamSettings {
  int64_t count = 1;          // 1: the likeliest token, one after the other
  double length_penalty = 1;  // an answer's score is divided by its length to the power of this
  EarlyStopping early_stopping = EarlyStopping::kLikely;
  bool renormalize_logits = false;  // without excluded tokens the others sum to one again
};

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
  // The rest is for answers of models of encoder and decoder. The first token of an answer, and the
  // last one that it may have.
  std::vector<int32_t> forced_bos_ids, forced_eos_ids;
  std::vector<int32_t> banned_ids;  // tokens that no answer has (bad_words_ids of one token)
  BeamSettings beams;
  int64_t no_repeat_ngram_size = 0;  // no so many tokens occur twice in one; 0: any may
  int64_t min_new_tokens = 0;        // before them none ends
  // Settings of the file that change the reference's answers and are not applied here, a sentence
  // each.
  std::vector<std::string> notes;
  std::vector<std::string> decoder_notes;  // the same of what is for such answers alone
};

// FormatError for a value of the wrong type.
GenerationConfig read_generation_config(const std::filesystem::path& folder);

}  // namespace strata::generate
