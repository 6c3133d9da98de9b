// The "post_processor" family of tokenizer.json: templates with BOS/EOS around a text and around a
// pair of texts, and the trimming of spaces from token ranges.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

// What a post-processor may ask about the encoding it works on.
struct EncodedText {
  std::string_view text;  // the input
  // A token's string; for an added token the text it matched, with the spaces it took along.
  std::function<std::string_view(const Token&)> token_text;
};

// Ids with their types (which segment of a pair they are of).
struct TypedIds {
  std::vector<int32_t> ids;
  std::vector<uint8_t> types;
};

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  virtual void process(const EncodedText& encoded, bool add_special_tokens,
                       std::vector<Token>& tokens) const = 0;
  // Makes of both texts of a pair, types 0 and 1, what stands one after another: their own tokens
  // and others. Errors: FormatError for a file that says nothing of pairs.
  virtual void join(std::vector<TypedIds>& parts) const = 0;
};

// Null gives nullptr. FormatError names an unsupported type.
std::unique_ptr<PostProcessor> make_post_processor(const Json& json, const std::string& where);

}  // namespace strata::text
