// The chat templates of a model folder, as transformers finds them. Never renders.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::text {

struct TemplateFiles {
  std::string standard;  // named "default", or the only one; empty: none
  std::string tools;     // named "tool_use", for conversations with tools; empty: none
  std::map<std::string, std::string> others = {};  // by their names (Cohere's "rag")
  std::vector<std::filesystem::path> files;        // read, beside tokenizer_config.json
};

// chat_template.jinja, else chat_template of tokenizer_config.json (text, a list of name and
// template, or an object of them); additional_chat_templates/NAME.jinja.
// Errors: FormatError for a template that is no text.
TemplateFiles read_template_files(const std::filesystem::path& folder,
                                  const Json& tokenizer_config);

}  // namespace strata::text
