// The chat templates that a run can choose by name, and the choice between them, a file and the
// tokenizer's own. Never renders.
#pragma once

#include <string>

#include "strata/text/tokenizer.h"

namespace strata::text {

// A template's text and what messages call it. The text is empty where there is none.
struct TemplateSource {
  std::string text;
  std::string name = "chat template";
  std::string tool_text = {};  // of the tokenizer's own, for conversations with tools
  // Tokens that the choice added to the tokenizer, and of what the rows of the model's embedding
  // are then a multiple.
  int num_added = 0;
  int64_t multiple = 1;
  // Whether further tokens name the rows that no token needs.
  bool fills_up = false;
};

// `path`: a file, a folder whose tokenizer has a template, or, where there is no such file, the
// name of one of the tokenizer's own templates (chat_template_path); `format`: a built-in name or
// "none" (chat_template_format); else the tokenizer's own. A folder's tokens and end of sequence
// become the tokenizer's (TRL's clone_chat_template); chatml and zephyr bring theirs along (PEFT's
// examples/sft), unless the tokenizer knows their marks. Errors: ConfigError for an unknown name, a
// folder without a template, and for a built-in one whose tokens the tokenizer lacks.
TemplateSource choose_chat_template(Tokenizer& tokenizer, const std::string& path,
                                    const std::string& format);

}  // namespace strata::text
