#include "strata/generate/conversation.h"

#include "strata/base/error.h"

namespace strata::generate {
namespace {

Json message(const char* role, const std::string& content) {
  Json result = Json::object();
  result["role"] = role;
  result["content"] = content;
  return result;
}

}  // namespace

Conversation::Conversation(LoadedModel& model, const text::Tokenizer& tokenizer, std::string system)
    : tokenizer_(tokenizer), generator_(model), system_(std::move(system)) {
  if (!tokenizer.chat_template().empty()) {
    template_.emplace(tokenizer.chat_template(), tokenizer.chat_template_name());
  }
  if (!template_ && !system_.empty()) {
    throw ConfigError(
        "system: found a message and a model without chat template, expected none; leave it out");
  }
  reset();
}

void Conversation::reset() {
  ids_.clear();
  messages_ = Json::array();
  if (!system_.empty()) messages_.push_back(message("system", system_));
}

std::vector<int32_t> Conversation::prompt_ids(const std::string& prompt) const {
  if (template_) {
    Json messages = messages_;
    messages.push_back(message("user", prompt));
    const std::string text =
        template_->render(messages, tokenizer_.specials(), /*add_generation_prompt=*/true).text;
    return tokenizer_.encode(text, /*add_special_tokens=*/false);
  }
  std::vector<int32_t> ids = ids_;
  const std::vector<int32_t> added = tokenizer_.encode(prompt, /*add_special_tokens=*/ids_.empty());
  ids.insert(ids.end(), added.begin(), added.end());
  return ids;
}

void Conversation::remember(const std::string& prompt, std::vector<int32_t> prompt_ids,
                            const Continuation& answer) {
  std::vector<int32_t> said = answer.ids;
  if (answer.reason == StopReason::kEndOfText) said.pop_back();
  if (template_) {
    messages_.push_back(message("user", prompt));
    messages_.push_back(message("assistant", tokenizer_.decode(said)));
    return;
  }
  ids_ = std::move(prompt_ids);
  ids_.insert(ids_.end(), said.begin(), said.end());
}

StopReason Conversation::answer(const std::string& prompt, const GenerateOptions& options,
                                Sampler& sampler, const OnText& on_text) {
  std::vector<int32_t> ids = prompt_ids(prompt);
  text::StreamDecoder decoder(tokenizer_);
  const Continuation result = generator_.generate(
      ids, options, sampler, [&](int32_t id) { return on_text(decoder.push(id)); });
  on_text(decoder.finish());
  if (result.ids.empty()) return result.reason;
  remember(prompt, std::move(ids), result);
  return result.reason;
}

}  // namespace strata::generate
