#include "strata/data/rows/hidden_texts.h"

#include <functional>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/data/rows/message_text.h"

namespace strata::data {
namespace {

// What no text means; digits, because filters change letters and escape signs.
constexpr std::string_view kMark = "8273640519";
// A text of so many bytes that is found is its own, not a part of another or of the template.
constexpr size_t kUnmistakable = 32;

// What can be seen of a conversation: texts and names in the order of the messages, tools first.
class ShownTexts {
 public:
  ShownTexts(const Json& messages, const Json& extra) : messages_(messages), extra_(extra) {
    const auto tools = extra.find("tools");
    if (tools != extra.end() && tools->is_array() && !tools->empty()) {
      add(kTools, function_name(tools->back()), /*is_call=*/true);
    }
    for (size_t k = 0; k < messages.size(); ++k) {
      add(k, answer_text(messages[k]), /*is_call=*/false);
      add(k, last_call(messages[k]), /*is_call=*/true);
    }
  }

  bool are_all_in(const std::string& rendered, const text::ChatTemplate& tmpl) const {
    size_t from = 0;
    for (const Place& place : places_) {
      // What the template writes itself ("user") says nothing about the message.
      if (place.text.size() < kUnmistakable && tmpl.mentions(place.text)) return false;
      const size_t at = rendered.find(place.text, from);
      if (at != std::string::npos) {
        from = at + place.text.size();
      } else if (place.text.size() < kUnmistakable ||
                 rendered.find(place.text) == std::string::npos) {
        return false;
      }
    }
    return true;
  }

  // Names of what `render` does not show of a conversation with marks.
  std::vector<std::string> hidden_from(
      const std::function<std::string(const Json& messages, const Json& extra)>& render) const {
    Json messages = messages_, extra = extra_;
    for (size_t i = 0; i < places_.size(); ++i) mark(i, messages, extra);
    const std::string rendered = render(messages, extra);
    std::vector<std::string> names;
    for (size_t i = 0; i < places_.size(); ++i) {
      if (rendered.find(mark_of(i)) == std::string::npos) names.push_back(name_of(places_[i]));
    }
    return names;
  }

 private:
  static constexpr size_t kTools = static_cast<size_t>(-1);  // in the place of a message's number

  struct Place {
    size_t message;
    std::string_view text;
    bool is_call;
  };

  void add(size_t message, std::string_view text, bool is_call) {
    if (!text.empty()) places_.push_back({message, text, is_call});
  }

  static std::string mark_of(size_t i) { return fmt::format("{}{:08}{}", kMark, i, kMark); }

  void mark(size_t i, Json& messages, Json& extra) const {
    const Place& place = places_[i];
    std::string* text = nullptr;
    if (place.message == kTools) {
      text = find_function_name(extra["tools"].back());
    } else {
      Json& message = messages[place.message];
      text = place.is_call ? find_last_call(message) : find_last_text(message);
    }
    text->append(mark_of(i));
  }

  std::string name_of(const Place& place) const {
    if (place.message == kTools) return "tools";
    return fmt::format("{} of role \"{}\"", place.is_call ? "tool_calls" : "texts",
                       messages_[place.message].value("role", ""));
  }

  const Json& messages_;
  const Json& extra_;
  std::vector<Place> places_;
};

// Arguments of a call that are the JSON text of an object which has members; null: they are not.
const Json* arguments_as_text(const Json& call) {
  if (!call.is_object()) return nullptr;
  const auto function = call.find("function");
  const Json& named = function != call.end() && function->is_object() ? *function : call;
  const auto arguments = named.find("arguments");
  if (arguments == named.end() || !arguments->is_string()) return nullptr;
  const Json object =
      Json::parse(arguments->get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
  return object.is_object() && !object.empty() ? &*arguments : nullptr;
}

void find_quoted_arguments(const Json& message, const std::string& rendered,
                           std::vector<std::string>& names) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (const Json& call : *calls) {
    const Json* text = arguments_as_text(call);
    if (text == nullptr || rendered.find(text->dump()) == std::string::npos) continue;
    names.push_back(fmt::format("{}role \"{}\"", kQuotedArguments, message.value("role", "")));
  }
}

}  // namespace

std::vector<std::string> find_hidden_texts(const text::ChatTemplate& tmpl, const Json& messages,
                                           const text::Tokenizer::Specials& specials,
                                           const Json& extra, const std::string& rendered) {
  const ShownTexts shown(messages, extra);
  if (shown.are_all_in(rendered, tmpl)) return {};
  try {
    return shown.hidden_from([&](const Json& marked, const Json& marked_extra) {
      return tmpl.render(marked, specials, /*add_generation_prompt=*/false, marked_extra).text;
    });
  } catch (const FormatError&) {
    return {};
  }
}

std::vector<std::string> find_printed_parts(const Json& messages, const std::string& rendered) {
  std::vector<std::string> names;
  for (const Json& message : messages) {
    find_quoted_arguments(message, rendered, names);
    const auto content = message.find("content");
    if (content == message.end() || !content->is_structured() || content->empty()) continue;
    const Json& object = content->is_array() ? content->front() : *content;
    if (!object.is_object() || object.empty()) continue;
    const std::string start =
        fmt::format("{}{{'{}': ", content->is_array() ? "[" : "", object.begin().key());
    if (rendered.find(start) == std::string::npos) continue;
    names.push_back(fmt::format("contents of role \"{}\"", message.value("role", "")));
  }
  return names;
}

}  // namespace strata::data
