// The chat templates that a run can choose by name, and the choice between them, a file and the
// tokenizer's own. Never renders.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "strata/text/tokenizer.h"

namespace strata::text {

struct BuiltinTemplate {
  std::string_view name;    // value of chat_template_format
  std::string_view source;  // Jinja
  // Tokens that must be in the vocabulary: without them the turns have no borders.
  std::span<const std::string_view> tokens;
};

std::span<const BuiltinTemplate> builtin_templates();

// A template's text and what messages call it. The text is empty where there is none.
struct TemplateSource {
  std::string text;
  std::string name = "chat template";
  std::string tool_text = {};  // of the tokenizer's own, for conversations with tools
};

// `path`: a file, or a folder whose tokenizer has a template (chat_template_path); `format`: a
// built-in name or "none" (chat_template_format); else the tokenizer's own.
// Errors: ConfigError for an unknown name, a folder without a template, and for a built-in one
// whose tokens the tokenizer lacks.
TemplateSource choose_chat_template(const Tokenizer& tokenizer, const std::string& path,
                                    const std::string& format);

}  // namespace strata::text
