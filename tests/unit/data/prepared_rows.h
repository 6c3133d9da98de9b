// Rows of a few lines, prepared with a tokenizer of bytes and with templates of two marks.
#pragma once

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "strata/base/exact_json.h"
#include "strata/data/prepare.h"

namespace strata::data {

inline constexpr const char* kTurns =
    "{% for m in messages %}{% if m.role == 'user' %}<|u|>{{ m.content }}<|e|>{% else %}<|a|>";
inline constexpr const char* kPrompt = "{% if add_generation_prompt %}<|a|>{% endif %}";

class PreparedRows : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = make_byte_tokenizer().release(); }
  static void TearDownTestSuite() { delete tokenizer_; }

  PreparedRows()
      : marked_(std::string("<s>") + kTurns +
                "{% generation %}{{ m.content }}<|e|>{% endgeneration %}{% endif %}{% endfor %}" +
                kPrompt),
        plain_(std::string("<s>") + kTurns + "{{ m.content }}<|e|>{% endif %}{% endfor %}" +
               kPrompt) {
    options_.subject = "train split";
  }

  static std::vector<Row> rows_of(const std::vector<std::string>& lines) {
    const auto file = std::make_shared<const std::string>("f.jsonl");
    std::vector<Row> rows;
    for (const std::string& line : lines) {
      rows.push_back({.fields = parse_json_exactly(line, *file),
                      .file = file,
                      .line = static_cast<int64_t>(rows.size()) + 1});
    }
    return rows;
  }

  Dataset prepare_lines(const std::vector<std::string>& lines) const {
    return prepare(rows_of(lines), *tokenizer_, &marked_, options_);
  }

  // The text of a row; special tokens in full.
  static std::string text_of(const Example& row) {
    return tokenizer_->decode(row.ids, /*skip_special_tokens=*/false);
  }

  // The trained text, _ for every token that is not trained.
  static std::string labels_of(const Example& row) {
    std::string text;
    for (const int32_t label : row.labels) {
      text += label == -100 ? "_"
                            : tokenizer_->decode(std::span(&label, 1),
                                                 /*skip_special_tokens=*/false);
    }
    return text;
  }

  std::string labels_of_line(const std::string& line) const {
    return labels_of(prepare_lines({line}).rows.at(0));
  }

  template <typename Error>
  std::string error_of(const std::vector<std::string>& lines) const {
    return testing::message_of<Error>([&] { prepare_lines(lines); });
  }

  inline static text::Tokenizer* tokenizer_ = nullptr;
  text::ChatTemplate marked_;  // has {% generation %}
  text::ChatTemplate plain_;   // renders the same text
  PrepareOptions options_;
};

inline const std::string kChat =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},)"
    R"( {"role": "user", "content": "q"}, {"role": "assistant", "content": "z"}]})";

}  // namespace strata::data
