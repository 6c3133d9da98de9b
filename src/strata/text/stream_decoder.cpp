// Incremental decoding over a sliding window of tokens.
#include <algorithm>
#include <utility>

#include "strata/text/clean_up.h"
#include "strata/text/tokenizer.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr size_t kMaxPending = 64;  // more tokens without a certain character are no character

// Bytes of `text` before its trailing U+FFFD, which may be the begin of a character.
size_t certain_size(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

// The text from `from` on. Byte-fallback decoders may turn characters already sent into U+FFFD, so
// that `from` need not be a character boundary any more.
std::string text_after(const std::string& text, size_t from) {
  while (from < text.size() && is_continuation(text[from])) ++from;
  return from < text.size() ? text.substr(from) : "";
}

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  std::string text = push_with_spaces(id);
  if (!tokenizer_->cleans_spaces()) return text;
  uncleaned_ += text;
  const size_t size = cleanable_size(uncleaned_);
  text = clean_up_spaces(uncleaned_.substr(0, size));
  uncleaned_.erase(0, size);
  return text;
}

std::string StreamDecoder::push_with_spaces(int32_t id) {
  if (skip_special_tokens_ && tokenizer_->is_special(id)) return "";
  window_.push_back(id);
  std::string text = tokenizer_->decode_with_spaces(window_, skip_special_tokens_);
  const bool may_change = tokenizer_->may_join_next(id);
  const size_t pending = window_.size() - context_;
  const bool is_broken = text.ends_with(kReplacement);
  const bool is_certain = (!is_broken && (!may_change || pending > kMaxPending)) ||
                          pending > (may_change ? 4 * kMaxPending : kMaxPending);
  if (!is_certain) text.resize(may_change ? std::min(sent_, text.size()) : certain_size(text));
  const std::string out = text_after(text, sent_);
  sent_ = std::max(sent_, text.size());
  if (is_certain && !out.empty()) {
    // What was pending becomes the context of what follows: the decoders look at no more than that.
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(context_));
    context_ = window_.size();
    sent_ = tokenizer_->decode_with_spaces(window_, skip_special_tokens_).size();
  }
  return out;
}

std::string StreamDecoder::finish() {
  uncleaned_ += text_after(tokenizer_->decode_with_spaces(window_, skip_special_tokens_), sent_);
  window_.clear();
  context_ = sent_ = 0;
  std::string text = std::exchange(uncleaned_, "");
  return tokenizer_->cleans_spaces() ? clean_up_spaces(std::move(text)) : text;
}

}  // namespace strata::text
