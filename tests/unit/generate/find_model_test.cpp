// Oracle: the rules that loaded_model.h and generation_config.h state.
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/generate/generation_config.h"
#include "strata/generate/loaded_model.h"
#include "tiny_checkpoint.h"

namespace strata::generate {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

void put_adapter(const TemporaryFolder& folder, const char* name, const std::string& base) {
  folder.put(std::string(name) + "/adapter_config.json",
             R"({"peft_type": "LORA", "base_model_name_or_path": )" + base + "}");
}

TEST(FindModel, BaseIsAbsoluteOrBesideTheAdapter) {
  TemporaryFolder folder;
  folder.put("base/config.json", "{}");
  put_adapter(folder, "absolute", "\"" + (folder / "base").string() + "\"");
  EXPECT_EQ(find_model({.model = folder / "absolute"}).base, folder / "base");
  EXPECT_EQ(find_model({.model = folder / "absolute"}).adapter, folder / "absolute");
  EXPECT_EQ(find_model({.adapter = folder / "absolute"}).base, folder / "base");
  put_adapter(folder, "relative", "\"../base\"");
  EXPECT_TRUE(std::filesystem::equivalent(find_model({.model = folder / "relative"}).base,
                                          folder / "base"));
}

TEST(FindModel, NamesWhatIsMissing) {
  TemporaryFolder folder;
  put_adapter(folder, "lost", "\"no/such/model\"");
  put_adapter(folder, "nameless", "null");
  EXPECT_NE(message_of<ConfigError>([&] {
              find_model({.model = folder / "lost"});
            }).find("\"no/such/model\", which is no folder here"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] {
              find_model({.model = folder / "nameless"});
            }).find("found no base_model_name_or_path"),
            std::string::npos);
  EXPECT_NE(message_of<IoError>([&] {
              find_model({.model = folder / "nothing"});
            }).find("model_name_or_path: found nothing at"),
            std::string::npos);
  EXPECT_THROW(find_model({}), ConfigError);
  EXPECT_THROW(find_model({.model = folder / "lost", .adapter = folder / "nameless"}), ConfigError);
}

TEST(GenerationConfig, ReadsOneOrSeveralEndIds) {
  TemporaryFolder folder;
  folder.put("config.json", R"({"eos_token_id": 2})");
  EXPECT_EQ(read_generation_config(folder.path()).eos_ids, std::vector<int32_t>{2});
  folder.put("generation_config.json",
             R"({"eos_token_id": [60, 2], "do_sample": true, "temperature": 0.6, "top_p": 1,
                 "num_beams": 1, "no_repeat_ngram_size": 3, "top_k": null})");
  const GenerationConfig config = read_generation_config(folder.path());
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{60, 2}));
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_p, 1.0);
  EXPECT_FALSE(config.top_k.has_value());
  EXPECT_TRUE(config.notes.empty());
  ASSERT_EQ(config.decoder_notes.size(), 1u);
  EXPECT_NE(config.decoder_notes[0].find("no_repeat_ngram_size 3"), std::string::npos);
}

TEST(GenerationConfig, ReadsWhereADecoderStarts) {
  TemporaryFolder folder;
  const auto start = [&] {
    const GenerationConfig file = read_generation_config(folder.path());
    return file.decoder_start_id ? file.decoder_start_id : file.bos_id;
  };
  folder.put("config.json", R"({"decoder_start_token_id": 2, "bos_token_id": 3})");
  EXPECT_EQ(start(), 2);
  folder.put("generation_config.json", R"({"decoder_start_token_id": 7, "bos_token_id": 3})");
  EXPECT_EQ(start(), 7);
  folder.put("generation_config.json", R"({"decoder_start_token_id": null, "bos_token_id": 3})");
  EXPECT_EQ(start(), 3);
  folder.put("generation_config.json", "{}");
  EXPECT_FALSE(start().has_value());
}

TEST(GenerationConfig, ReadsHowAnswersAreSearched) {
  TemporaryFolder folder;
  folder.put("generation_config.json", R"({"num_beams": 4, "length_penalty": 2,
             "early_stopping": true, "no_repeat_ngram_size": 3, "min_length": 56})");
  GenerationConfig config = read_generation_config(folder.path());
  EXPECT_EQ(config.beams.count, 4);
  EXPECT_EQ(config.beams.length_penalty, 2.0);
  EXPECT_EQ(config.beams.early_stopping, EarlyStopping::kWhenFull);
  EXPECT_EQ(config.no_repeat_ngram_size, 3);
  EXPECT_EQ(config.min_new_tokens, 55);
  EXPECT_EQ(config.decoder_notes.size(), 3u);
  folder.put("generation_config.json",
             R"({"early_stopping": "never", "min_length": 9, "min_new_tokens": 3})");
  config = read_generation_config(folder.path());
  EXPECT_EQ(config.beams.count, 1);
  EXPECT_EQ(config.beams.early_stopping, EarlyStopping::kNever);
  EXPECT_EQ(config.min_new_tokens, 3);
}

TEST(GenerationConfig, RefusesWrongTypes) {
  TemporaryFolder folder;
  for (const char* text :
       {R"({"top_k": 1.5})", R"({"temperature": "hot"})", R"({"eos_token_id": ["a"]})",
        R"({"do_sample": 1})", R"({"num_beams": 0})", R"({"num_beams": 65537})",
        R"({"early_stopping": "soon"})", "[]"}) {
    folder.put("generation_config.json", text);
    EXPECT_THROW(read_generation_config(folder.path()), FormatError) << text;
  }
}

}  // namespace
}  // namespace strata::generate
