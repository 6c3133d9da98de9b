// Tokenizers of folders without tokenizer.json: SentencePiece and tiktoken models, tekken.json,
// vocab.json with merges.txt, vocab.txt. Turns them into the document that tokenizer.json would be,
// as transformers converts them; the pipeline of a named class is class_rules' business.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strata/text/classes/rules.h"
#include "strata/text/tokenizer_file.h"

namespace strata::text {

struct VocabularyFiles {
  TokenizerFile file = {};
  std::string tokenizer_class;  // as given, or what the kind of file means where none is declared
  std::vector<std::filesystem::path> paths = {};
};

// IoError when the folder has none of these files, FormatError for a broken one.
VocabularyFiles read_vocabulary_files(const std::filesystem::path& folder,
                                      const Json& tokenizer_config,
                                      const std::string& tokenizer_class);

// The same of a class that maps pieces, from the file that cuts sources or, where it has two, that
// cuts targets. `has_mapped_files`: whether the folder has them.
bool has_mapped_files(const std::filesystem::path& folder, const std::string& tokenizer_class);
bool has_target_pieces(const std::string& tokenizer_class);
VocabularyFiles read_mapped_files(const std::filesystem::path& folder, const Json& tokenizer_config,
                                  const std::string& tokenizer_class, bool of_targets);

// Names of the folder's files that hold a vocabulary: tokenizer.json and those read without it.
std::vector<std::string> vocabularies_in(const std::filesystem::path& folder);

// The named and additional tokens of a converted document: they come before the class's own.
void add_file_specials(const Json& document, const std::string& tokenizer_class, ClassRules& rules);

// The post-processor that add_bos_token and add_eos_token ask for; null if neither does.
Json ends_by_flags(const Json& tokenizer_config, const Json& default_specials);

// One kind each.
TokenizerFile read_sentencepiece_file(const std::filesystem::path& path,
                                      const std::string& tokenizer_class, const Json& settings);
TokenizerFile read_tiktoken_file(const std::filesystem::path& path, const Json& tokenizer_config);
TokenizerFile read_tekken_file(const std::filesystem::path& path);
bool is_sentencepiece_file(const std::filesystem::path& path);

}  // namespace strata::text
