// Prepares the variables as apply_chat_template does and runs the template.
#include "strata/text/templates/chat_template.h"

#include <optional>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/text/jinja/interpreter.h"

namespace strata::text {

struct ChatTemplate::Impl {
  std::string name;
  jinja::Program program;
  std::optional<jinja::Program> tool_program;
  std::string sources;
};

namespace {

jinja::Program parse_named(const std::string& source, const std::string& name) {
  try {
    return jinja::parse(source);
  } catch (const jinja::Fault& fault) {
    throw FormatError("{}: {}", name, fault.what());
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::string name, std::string tool_source) {
  auto impl = std::make_unique<Impl>();
  impl->program = parse_named(source, name);
  impl->sources = source + "\n" + tool_source;
  if (!tool_source.empty()) {
    impl->tool_program = parse_named(tool_source, name + " (tool_use)");
  }
  impl->name = std::move(name);
  impl_ = std::move(impl);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::mentions(std::string_view text) const {
  return impl_->sources.find(text) != std::string::npos;
}

bool ChatTemplate::has_generation_blocks() const {
  return impl_->program.has_generation &&
         (!impl_->tool_program || impl_->tool_program->has_generation);
}

namespace {

// nlohmann's name; an integer beyond 64 bits is no number to it.
const char* kind_of(const Json& value) { return big_integer(value) ? "number" : value.type_name(); }

// Without null values; the names that reasoning goes by fill each other.
Json prepare_message(const Json& message, const std::string& name, size_t index) {
  if (!message.is_object()) {
    throw FormatError("{}: found {} as message {}, expected an object with role and content", name,
                      kind_of(message), index);
  }
  Json out = Json::object();
  Json reasoning;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    const auto it = message.find(key);
    if (reasoning.is_null() && it != message.end() && !it->is_null()) reasoning = *it;
  }
  if (!reasoning.is_null()) out["thinking"] = reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) out[key] = value;
  }
  if (!reasoning.is_null()) out["reasoning_content"] = reasoning;
  return out;
}

// Many templates want a text in each message, and fail at others in words of Python.
const char* content_advice(const Json& messages) {
  for (const Json& message : messages) {
    const auto content = message.find("content");
    if (content == message.end()) {
      return "; a message has no content: give it an empty text, or take a template that reads "
             "calls of tools";
    }
    if (content->is_array()) {
      return "; a message has a list of parts as content: give it as one text, or take a template "
             "that reads parts";
    }
  }
  return "";
}

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

void add_specials(const Tokenizer::Specials& specials, Variables& variables) {
  const auto add = [&](const char* name, const std::optional<std::string>& token) {
    if (token) variables.emplace_back(name, *token);
  };
  add("bos_token", specials.bos), add("eos_token", specials.eos), add("unk_token", specials.unk);
  add("sep_token", specials.sep), add("pad_token", specials.pad), add("cls_token", specials.cls);
  add("mask_token", specials.mask);
  for (const auto& [name, token] : specials.own) variables.emplace_back(name, token);
}

}  // namespace

RenderedChat ChatTemplate::render(const Json& messages, const Tokenizer::Specials& specials,
                                  bool add_generation_prompt, const Json& extra) const {
  if (!messages.is_array() || messages.empty()) {
    throw FormatError("{}: found {}, expected a list of at least one message", impl_->name,
                      messages.is_array() ? "no messages" : kind_of(messages));
  }
  if (!extra.is_null() && !extra.is_object()) {
    throw FormatError("{}: found {} as variables, expected an object", impl_->name, kind_of(extra));
  }
  Json chat = Json::array();
  for (const Json& message : messages) {
    chat.push_back(prepare_message(message, impl_->name, chat.size()));
  }
  const auto tools = extra.find("tools");
  const bool uses_tools = impl_->tool_program && tools != extra.end() && !tools->is_null();
  const jinja::Program& program = uses_tools ? *impl_->tool_program : impl_->program;
  int line = 0;
  try {
    Variables variables;
    add_specials(specials, variables);
    const jinja::Value none;
    for (const char* name : {"tools", "documents"}) variables.emplace_back(name, none);
    for (const auto& [key, value] : extra.items()) {
      variables.emplace_back(key, jinja::Value::from_json(value));
    }
    variables.emplace_back("messages", jinja::Value::from_json(chat));
    variables.emplace_back("add_generation_prompt", add_generation_prompt);
    jinja::Interpreter interpreter(std::move(variables));
    try {
      RenderedChat rendered;
      rendered.text = interpreter.run(program);
      rendered.generation = interpreter.generation();
      return rendered;
    } catch (const jinja::Fault&) {
      line = interpreter.line();
      throw;
    }
  } catch (const jinja::Fault& fault) {
    if (line == 0) throw FormatError("{}: {}", impl_->name, fault.what());  // of its variables
    throw FormatError("{}: line {}: {}{}", impl_->name, line, fault.what(), content_advice(chat));
  }
}

}  // namespace strata::text
