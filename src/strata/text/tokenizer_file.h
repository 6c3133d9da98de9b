// tokenizer.json as read from disk: the vocabulary and the merges streamed into flat lists (a
// document tree of 300,000 merges is slow to build), everything else as a JSON document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"

namespace strata::text {

struct TokenizerFile {
  std::string subject;  // path, for messages
  Json document = {};   // without model.vocab and model.merges where those were streamed
  bool has_vocab = false;
  std::vector<std::pair<std::string, int64_t>> vocab = {};  // model.vocab when it is an object
  bool has_merges = false;
  // Ids of the pieces of a SentencePiece model that come from another file; what that lacks is
  // `outer_unk`.
  std::vector<std::pair<std::string, int64_t>> outer_vocab = {};
  std::string outer_unk = {};
  // model.merges: "a b" is split at its only space.
  std::vector<std::pair<std::string, std::string>> merges = {};
};

// IoError when unreadable; FormatError for broken JSON, repeated keys of the vocabulary, and merges
// that are not two strings.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

}  // namespace strata::text
