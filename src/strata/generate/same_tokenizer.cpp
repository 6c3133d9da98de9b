#include "strata/generate/same_tokenizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/text/templates/template_files.h"
#include "strata/text/vocabulary_files.h"

namespace strata::generate {
namespace {

namespace fs = std::filesystem;

// Tokens that a folder's settings add to its vocabulary, whichever way they are written there.
Json added_tokens_of(const fs::path& folder) {
  Json added;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!fs::exists(folder / file)) continue;
    const Json settings = read_json_file(folder / file);
    for (const char* key :
         {"added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"}) {
      if (settings.contains(key)) added[key] = settings.at(key);
    }
  }
  return added;
}

// The same where no tokenizer.json says it all.
bool has_same_vocabulary(const fs::path& a, const fs::path& b) {
  const std::vector<std::string> files = text::vocabularies_in(a);
  if (files != text::vocabularies_in(b)) return false;
  const auto is_same = [&](const std::string& file) {
    if (fs::exists(a / file) != fs::exists(b / file)) return false;
    return !fs::exists(a / file) || read_file(a / file) == read_file(b / file);
  };
  return std::ranges::all_of(files, is_same) && is_same("merges.txt") &&
         is_same("added_tokens.json") && added_tokens_of(a) == added_tokens_of(b);
}

// The template as the tokenizer finds it, whichever file holds it.
std::string template_of(const fs::path& folder) {
  const fs::path config = folder / "tokenizer_config.json";
  const Json settings = fs::exists(config) ? read_json_file(config) : Json::object();
  return text::read_template_files(folder, settings).standard;
}

}  // namespace

bool has_chat_template(const fs::path& folder) { return !template_of(folder).empty(); }

bool reads_alike(const fs::path& a, const fs::path& b) {
  const auto both_have = [&](const char* name) {
    return fs::exists(a / name) && fs::exists(b / name);
  };
  constexpr const char* kTokenizer = "tokenizer.json";
  if (fs::exists(a / kTokenizer) != fs::exists(b / kTokenizer)) return false;
  if (!both_have(kTokenizer)) {
    if (!has_same_vocabulary(a, b)) return false;
  } else if (read_file(a / kTokenizer) != read_file(b / kTokenizer)) {
    const Json one = read_json_file(a / kTokenizer), other = read_json_file(b / kTokenizer);
    for (const char* key : {"added_tokens", "normalizer", "pre_tokenizer", "model"}) {
      if (one.value(key, Json()) != other.value(key, Json())) return false;
    }
  }
  const std::string one = template_of(a), other = template_of(b);
  return one.empty() || other.empty() || one == other;
}

}  // namespace strata::generate
