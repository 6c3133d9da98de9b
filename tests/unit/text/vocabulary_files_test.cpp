// Oracle: the names of docs/guide/data.md, section Tokenizers.
#include "strata/text/vocabulary_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"

namespace strata::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Vocabularies : public ::testing::TestWithParam<const char*> {};

TEST_P(Vocabularies, AreFoundAmongSettings) {
  const strata::testing::TemporaryFolder folder;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.jinja", "config.json", "merges.txt"}) {
    folder.put(name, "{}");
  }
  EXPECT_THAT(vocabularies_in(folder.path()), IsEmpty());
  folder.put(GetParam(), "{}");
  EXPECT_THAT(vocabularies_in(folder.path()), ElementsAre(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Names, Vocabularies,
                         ::testing::Values("tokenizer.json", "tokenizer.model", "spiece.model",
                                           "sentencepiece.bpe.model", "spm.model",
                                           "sentencepiece.model", "tiktoken.model",
                                           "vocab.tiktoken", "tekken.json", "vocab.json",
                                           "vocab.txt"));

}  // namespace
}  // namespace strata::text
