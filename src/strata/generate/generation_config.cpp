#include "strata/generate/generation_config.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::generate {
namespace {

namespace fs = std::filesystem;

// Keys that change answers in the reference, with the values that change nothing.
struct Unapplied {
  const char* key;
  std::vector<Json> neutral;
};

const std::vector<Unapplied>& unapplied_keys() {
  static const std::vector<Unapplied> kKeys = {{"num_beam_groups", {1}},
                                               {"encoder_no_repeat_ngram_size", {0}},
                                               {"encoder_repetition_penalty", {1}},
                                               {"sequence_bias", {Json::object(), Json::array()}},
                                               {"suppress_tokens", {Json::array()}},
                                               {"begin_suppress_tokens", {Json::array()}},
                                               {"token_healing", {false}},
                                               {"max_time", {}},
                                               {"exponential_decay_length_penalty", {}},
                                               {"guidance_scale", {1}},
                                               {"typical_p", {1}},
                                               {"top_h", {}},
                                               {"epsilon_cutoff", {0}},
                                               {"eta_cutoff", {0}},
                                               {"penalty_alpha", {0}},
                                               {"watermarking_config", {}},
                                               {"stop_strings", {Json::array()}}};
  return kKeys;
}

// The same of those that answers of models of encoder and decoder follow.
const std::vector<Unapplied>& decoder_keys() {
  static const std::vector<Unapplied> kKeys = {
      {"num_beams", {1}},      {"no_repeat_ngram_size", {0}}, {"min_length", {0}},
      {"min_new_tokens", {0}}, {"forced_bos_token_id", {}},   {"forced_eos_token_id", {}}};
  return kKeys;
}

class Reader {
 public:
  Reader(const Json& json, std::string subject) : json_(json), subject_(std::move(subject)) {
    if (!json.is_object()) refuse("the file", json, "a json object");
  }

  template <typename T>
  std::optional<T> read(const char* key, const char* expected) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    bool fits = value->is_number();
    if constexpr (std::is_same_v<T, bool>) fits = value->is_boolean();
    if constexpr (std::is_same_v<T, int64_t>) fits = value->is_number_integer();
    if (!fits) refuse(key, *value, expected);
    return value->get<T>();
  }

  int64_t read_count(const char* key, int64_t least, int64_t absent) const {
    constexpr int64_t kMost = 1 << 16;
    const auto value = read<int64_t>(key, "an integer");
    if (value && (*value < least || *value > kMost)) {
      refuse(key, *value, fmt::format("a number from {} to {}", least, kMost).c_str());
    }
    return value.value_or(absent);
  }

  EarlyStopping read_early_stopping(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return EarlyStopping::kLikely;
    if (*value == Json("never")) return EarlyStopping::kNever;
    if (!value->is_boolean()) refuse(key, *value, "true, false or \"never\"");
    return value->get<bool>() ? EarlyStopping::kWhenFull : EarlyStopping::kLikely;
  }

  std::vector<int32_t> read_ids(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    std::vector<int32_t> ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
      if (!id.is_number_integer()) refuse(key, *value, "a token id or a list of them");
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  // Of bad_words_ids those of one token; nothing where there are longer ones.
  std::vector<int32_t> read_banned_ids(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    std::vector<int32_t> ids;
    for (const Json& word : value->is_array() ? *value : Json::array({Json()})) {
      if (!word.is_array() || word.empty() ||
          !std::ranges::all_of(word, [](const Json& id) { return id.is_number_integer(); })) {
        refuse(key, *value, "a list of lists of token ids");
      }
      if (word.size() > 1) return {};
      ids.push_back(word[0].get<int32_t>());
    }
    return ids;
  }

  void note_unapplied(const std::vector<Unapplied>& keys, std::vector<std::string>& notes) const {
    for (const Unapplied& entry : keys) {
      const Json* value = find(entry.key);
      if (value == nullptr || std::ranges::find(entry.neutral, *value) != entry.neutral.end()) {
        continue;
      }
      notes.push_back(fmt::format("{}: {} {} is not applied here", subject_, entry.key,
                                  dump_python(*value, /*indent=*/-1)));
    }
  }

 private:
  const Json* find(const char* key) const {
    const auto entry = json_.find(key);
    return entry == json_.end() || entry->is_null() ? nullptr : &*entry;
  }

  [[noreturn]] void refuse(const char* key, const Json& value, const char* expected) const {
    throw FormatError("{}: found {} for {}, expected {}; correct the file", subject_,
                      dump_python(value, /*indent=*/-1), key, expected);
  }

  const Json& json_;
  std::string subject_;
};

void read_decoder_settings(const Reader& reader, GenerationConfig& result) {
  result.forced_bos_ids = reader.read_ids("forced_bos_token_id");
  result.forced_eos_ids = reader.read_ids("forced_eos_token_id");
  result.banned_ids = reader.read_banned_ids("bad_words_ids");
  result.beams.count = reader.read_count("num_beams", 1, 1);
  result.beams.length_penalty = reader.read<double>("length_penalty", "a number").value_or(1);
  result.beams.early_stopping = reader.read_early_stopping("early_stopping");
  result.beams.renormalize_logits =
      reader.read<bool>("renormalize_logits", "true or false").value_or(false);
  result.no_repeat_ngram_size = reader.read_count("no_repeat_ngram_size", 0, 0);
  // The start token is part of a length; the other setting goes before it.
  const int64_t by_length = std::max<int64_t>(reader.read_count("min_length", 0, 0) - 1, 0);
  result.min_new_tokens = reader.read_count("min_new_tokens", 0, by_length);
}

}  // namespace

GenerationConfig read_generation_config(const fs::path& folder) {
  GenerationConfig result;
  // Older models have it all in the second, which the reference reads then.
  const fs::path own = folder / "generation_config.json";
  const fs::path file = fs::exists(own) ? own : folder / "config.json";
  if (!fs::exists(file)) return result;
  result.source = file.filename().string();
  const Json json = read_json_file(file);
  const Reader reader(json, file.string());
  result.do_sample = reader.read<bool>("do_sample", "true or false");
  result.temperature = reader.read<double>("temperature", "a number");
  result.top_k = reader.read<int64_t>("top_k", "an integer");
  result.max_new_tokens = reader.read<int64_t>("max_new_tokens", "an integer");
  result.top_p = reader.read<double>("top_p", "a number");
  result.min_p = reader.read<double>("min_p", "a number");
  result.repetition_penalty = reader.read<double>("repetition_penalty", "a number");
  result.eos_ids = reader.read_ids("eos_token_id");
  // Also where config.json alone is there to ask, whose defaults are nobody's then, as in the
  // reference.
  result.decoder_start_id = reader.read<int64_t>("decoder_start_token_id", "an integer");
  const auto bos = reader.read_ids("bos_token_id");
  if (!bos.empty()) result.bos_id = bos.front();
  read_decoder_settings(reader, result);
  reader.note_unapplied(unapplied_keys(), result.notes);
  reader.note_unapplied({{"bad_words_ids", {Json::array()}}},
                        result.banned_ids.empty() ? result.notes : result.decoder_notes);
  reader.note_unapplied(decoder_keys(), result.decoder_notes);
  return result;
}

}  // namespace strata::generate
