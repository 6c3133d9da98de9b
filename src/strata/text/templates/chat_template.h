// Renders the chat templates of Hugging Face models. Own Jinja engine (text/jinja/): no file
// access, no attribute access outside JSON data, bounded steps and depth.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

struct RenderedChat {
  std::string text;
  // Byte spans [begin, end) of `text` that {% generation %} blocks wrote, in order.
  std::vector<std::pair<size_t, size_t>> generation;
};

// Threads: render() may be called at the same time from any thread.
class ChatTemplate {
 public:
  // `source`: Jinja text; `name`: what error messages call it; `tool_source`: the text that stands
  // in for it where `extra` has tools; empty: none. FormatError names line and cause.
  explicit ChatTemplate(std::string source, std::string name = "chat template",
                        std::string tool_source = "");
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `messages`: array of objects with role and content, as apply_chat_template takes it.
  // `extra`: further variables by name (object or null): tools, documents, enable_thinking, ...
  // FormatError: the template's raise_exception message, or a fault of the template with its line.
  RenderedChat render(const Json& messages, const Tokenizer::Specials& specials,
                      bool add_generation_prompt, const Json& extra = {}) const;

  // Whether the template (both, where there is one for tools) has {% generation %} blocks (needed
  // for assistant-only loss).
  bool has_generation_blocks() const;

  // Whether the text stands in the template itself (in either, where there is one for tools).
  bool mentions(std::string_view text) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace strata::text
