// Chooses among the files of a folder; reads the two plain-text kinds.
#include "strata/text/vocabulary_files.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/classes/builder.h"
#include "strata/text/classes/pieces.h"
#include "strata/text/classes/tokenizer_class.h"

namespace strata::text {
namespace {

namespace fs = std::filesystem;

// Of SentencePiece and tiktoken, in the order in which they are looked for.
constexpr const char* kModels[] = {
    "tokenizer.model",     "spiece.model",   "sentencepiece.bpe.model", "spm.model",
    "sentencepiece.model", "tiktoken.model", "vocab.tiktoken"};
constexpr const char* kOthers[] = {"tokenizer.json", "tekken.json", "vocab.json", "vocab.txt"};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

// vocab.json: an object of tokens and their ids.
std::vector<std::pair<std::string, int64_t>> read_ids(const fs::path& vocab) {
  std::vector<std::pair<std::string, int64_t>> entries;
  const Json json = read_json_file(vocab);
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_integer()) {
      throw FormatError("{}: found {} as the id of \"{}\", expected an integer", vocab.string(),
                        id.dump(), token);
    }
    entries.emplace_back(token, id.get<int64_t>());
  }
  return entries;
}

TokenizerFile read_json_and_merges(const fs::path& vocab, const fs::path& merges) {
  TokenizerFile file{.subject = vocab.string()};
  file.document = {{"model", {{"type", "BPE"}}}};
  file.has_vocab = file.has_merges = true;
  file.vocab = read_ids(vocab);
  int line = 0;
  for (const std::string& text : split_lines(read_file(merges))) {
    ++line;
    if (text.empty() || text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      throw FormatError("{}:{}: found \"{}\", expected two tokens with a space between",
                        merges.string(), line, text);
    }
    file.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return file;
}

TokenizerFile read_word_list(const fs::path& path) {
  TokenizerFile file{.subject = path.string()};
  file.document = {{"model", {{"type", "WordPiece"}}}};
  file.has_vocab = true;
  for (std::string& token : split_lines(read_file(path))) {
    file.vocab.emplace_back(std::move(token), file.vocab.size());
  }
  return file;
}

constexpr const char* kIds = "vocab.json";
constexpr const char* kSourcePieces = "source.spm";
constexpr const char* kTargetPieces = "target.spm";
constexpr const char* kPieces = "sentencepiece.bpe.model";

std::vector<const char*> mapped_files(const std::string& tokenizer_class) {
  if (has_target_pieces(tokenizer_class)) return {kIds, kSourcePieces, kTargetPieces};
  return {kIds, kPieces};
}

}  // namespace

bool has_target_pieces(const std::string& tokenizer_class) {
  return tokenizer_class == "MarianTokenizer";
}

bool has_mapped_files(const fs::path& folder, const std::string& tokenizer_class) {
  if (!maps_pieces(tokenizer_class)) return false;
  return std::ranges::all_of(mapped_files(tokenizer_class),
                             [&](const char* name) { return fs::exists(folder / name); });
}

VocabularyFiles read_mapped_files(const fs::path& folder, const Json& tokenizer_config,
                                  const std::string& tokenizer_class, bool of_targets) {
  VocabularyFiles found{.tokenizer_class = tokenizer_class};
  for (const char* name : mapped_files(tokenizer_class)) found.paths.push_back(folder / name);
  found.file =
      read_sentencepiece_file(found.paths[of_targets ? 2 : 1], tokenizer_class, tokenizer_config);
  found.file.outer_vocab = read_ids(folder / kIds);
  const Json unk =
      tokenizer_config.is_object() ? tokenizer_config.value("unk_token", Json()) : Json();
  found.file.outer_unk = unk.is_string() ? unk.get<std::string>() : "<unk>";
  return found;
}

VocabularyFiles read_vocabulary_files(const fs::path& folder, const Json& tokenizer_config,
                                      const std::string& tokenizer_class) {
  VocabularyFiles found{.tokenizer_class = tokenizer_class};
  const auto choose_default = [&](const char* name) {
    if (found.tokenizer_class == kFileAsIs) found.tokenizer_class = name;
  };
  for (const char* name : kModels) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    found.paths = {path};
    if (is_sentencepiece_file(path)) {
      found.file = read_sentencepiece_file(path, tokenizer_class, tokenizer_config);
    } else {
      found.file = read_tiktoken_file(path, tokenizer_config);
      found.tokenizer_class = kFileAsIs;
    }
    return found;
  }
  if (fs::exists(folder / "tekken.json")) {
    found.paths = {folder / "tekken.json"};
    found.file = read_tekken_file(found.paths[0]);
    found.tokenizer_class = kFileAsIs;
  } else if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) {
    found.paths = {folder / "vocab.json", folder / "merges.txt"};
    found.file = read_json_and_merges(found.paths[0], found.paths[1]);
    choose_default("GPT2Tokenizer");
  } else if (fs::exists(folder / "vocab.txt")) {
    found.paths = {folder / "vocab.txt"};
    found.file = read_word_list(found.paths[0]);
    choose_default("BertTokenizer");
  } else {
    throw IoError(
        "{}: found no tokenizer, expected tokenizer.json, tokenizer.model, tekken.json, vocab.json "
        "with merges.txt, or vocab.txt",
        folder.string());
  }
  if (is_sentencepiece_class(found.tokenizer_class)) {
    throw FormatError(
        "{}: found {} for tokenizer_class \"{}\", expected tokenizer.json or a SentencePiece "
        "model; "
        "load the tokenizer with transformers and save it",
        folder.string(), found.paths[0].filename().string(), found.tokenizer_class);
  }
  return found;
}

std::vector<std::string> vocabularies_in(const fs::path& folder) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& name) {
    const bool has_pieces = fs::exists(folder / kSourcePieces) || fs::exists(folder / kPieces);
    const bool is_half = name == kIds && !has_pieces && !fs::exists(folder / "merges.txt");
    if (!is_half && fs::is_regular_file(folder / name)) found.push_back(name);
  };
  std::ranges::for_each(kModels, add);
  std::ranges::for_each(kOthers, add);
  add(kSourcePieces);
  add(kTargetPieces);
  return found;
}

void add_file_specials(const Json& document, const std::string& tokenizer_class,
                       ClassRules& rules) {
  Json& specials = rules.default_specials;
  if (const auto named = document.find("default_specials"); named != document.end()) {
    for (const auto& [key, value] : named->items()) specials[key] = value;
  }
  if (const auto pieces = document.find("added_pieces"); pieces != document.end()) {
    constexpr const char* kMore = "additional_special_tokens";
    specials[kMore] =
        additional_tokens_of_class(find_piece_rule(tokenizer_class, ""), *pieces,
                                   specials.contains(kMore) ? specials[kMore] : Json::array());
  }
}

Json ends_by_flags(const Json& tokenizer_config, const Json& default_specials) {
  const auto is_set = [&](const char* flag, const char* token) {
    return tokenizer_config.is_object() && tokenizer_config.value(flag, Json()) == true &&
           (tokenizer_config.contains(token) || default_specials.contains(token));
  };
  const bool has_bos = is_set("add_bos_token", "bos_token");
  const bool has_eos = is_set("add_eos_token", "eos_token");
  if (!has_bos && !has_eos) return nullptr;
  Pieces pair;
  const auto add = [&](const std::string& type) {
    if (has_bos) pair.push_back("bos_token" + type);
    pair.push_back((type.empty() ? "$A" : "$B") + type);
    if (has_eos) pair.push_back("eos_token" + type);
  };
  add("");
  const Pieces single = pair;
  add(":1");
  return ends(single, pair);
}

}  // namespace strata::text
