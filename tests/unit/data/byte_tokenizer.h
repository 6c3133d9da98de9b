// A tokenizer of one token per byte: ids 0 to 255 are bytes, then <s> (256), </s>, <|u|>, <|a|>,
// <|e|>. encode() puts <s> in front, of each text of a pair. Small enough to read expected ids off
// a text.
#pragma once

#include <memory>
#include <string>

#include "../temporary_folder.h"
#include "strata/base/json.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

inline constexpr int32_t kBos = 256;
inline constexpr int32_t kEos = 257;
inline constexpr int32_t kUser = 258;
inline constexpr int32_t kAssistant = 259;
inline constexpr int32_t kEnd = 260;

// GPT-2's printable stand-in for a byte.
inline std::string byte_level_name(int byte) {
  const auto is_plain = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!is_plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !is_plain(b);
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// Its files stay as long as `folder`.
inline std::unique_ptr<text::Tokenizer> make_byte_tokenizer(const testing::TemporaryFolder& folder,
                                                            bool with_eos = true) {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_level_name(byte)] = byte;
  Json added = Json::array();
  int32_t id = kBos;
  for (const char* token : {"<s>", "</s>", "<|u|>", "<|a|>", "<|e|>"}) {
    added.push_back({{"id", id++},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", true}};
  const auto piece = [](const char* kind, const char* name, int type = 0) {
    return Json{{kind, {{"id", name}, {"type_id", type}}}};
  };
  const Json bos = {{"id", "<s>"}, {"ids", Json::array({kBos})}, {"tokens", Json::array({"<s>"})}};
  const Json post = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({piece("SpecialToken", "<s>"), piece("Sequence", "A")})},
      {"pair", Json::array({piece("SpecialToken", "<s>"), piece("Sequence", "A"),
                            piece("SpecialToken", "<s>"), piece("Sequence", "B", 1)})},
      {"special_tokens", {{"<s>", bos}}}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", vocabulary},
                      {"merges", Json::array()}};
  const Json file = {
      {"version", "1.0"},       {"truncation", nullptr}, {"padding", nullptr},
      {"added_tokens", added},  {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
      {"post_processor", post}, {"decoder", byte_level}, {"model", model}};
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"bos_token", "<s>"}};
  if (with_eos) config["eos_token"] = "</s>";
  folder.put("tokenizer.json", file.dump());
  folder.put("tokenizer_config.json", config.dump());
  return text::Tokenizer::load(folder.path());
}

inline std::unique_ptr<text::Tokenizer> make_byte_tokenizer(bool with_eos = true) {
  const testing::TemporaryFolder folder;
  return make_byte_tokenizer(folder, with_eos);
}

}  // namespace strata::data
