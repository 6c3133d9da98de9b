#include "strata/text/clean_up.h"

namespace strata::text {
namespace {

// In transformers' order: a replacement sees what those before it made.
constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
    {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
};

}  // namespace

bool cleans_up_spaces(const Json& settings, std::string_view tokenizer_class,
                      std::string_view model_type) {
  const auto is_set = [&](const char* key, bool fallback) {
    const auto it = settings.is_object() ? settings.find(key) : settings.end();
    if (!settings.is_object() || it == settings.end()) return fallback;
    return it->is_boolean() && it->get<bool>();
  };
  if (!is_set("clean_up_tokenization_spaces", false)) return false;
  return model_type != "BPE" ||
         is_set("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
                tokenizer_class == "LukeTokenizer");
}

std::string clean_up_spaces(std::string text) {
  for (const auto& [found, content] : kReplacements) {
    std::string out;
    size_t at = 0;
    for (size_t next; (next = text.find(found, at)) != std::string::npos;
         at = next + found.size()) {
      out.append(text, at, next - at).append(content);
    }
    text = out.append(text, at);
  }
  return text;
}

// Replacements only take spaces away, and no pattern goes on after any other character than these.
size_t cleanable_size(std::string_view text) { return text.find_last_not_of(" 'nvr") + 1; }

}  // namespace strata::text
