#include "strata/data/rows/message_text.h"

#include <string>
#include <type_traits>

namespace strata::data {
namespace {

template <typename Document>
using TextOf = std::conditional_t<std::is_const_v<Document>, const std::string, std::string>;

// A member that holds a text; null: there is none.
template <typename Document>
TextOf<Document>* text_member(Document& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : it->template get_ptr<TextOf<Document>*>();
}

template <typename Document>
TextOf<Document>* text_of_message(Document& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return text_member(message, "content");
  for (auto part = content->rbegin(); part != content->rend(); ++part) {
    TextOf<Document>* text = text_member<Document>(*part, "text");
    if (text != nullptr && !text->empty()) return text;
  }
  return nullptr;
}

// The name of a call or of a tool, which may stand in its "function".
template <typename Document>
TextOf<Document>* name_member(Document& call) {
  if (!call.is_object()) return nullptr;
  const auto function = call.find("function");
  return text_member<Document>(function == call.end() ? call : *function, "name");
}

template <typename Document>
TextOf<Document>* call_of_message(Document& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array() || calls->empty()) return nullptr;
  return name_member<Document>(calls->back());
}

std::string_view view(const std::string* text) {
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

}  // namespace

std::string* find_last_text(Json& message) { return text_of_message(message); }
std::string_view last_text(const Json& message) { return view(text_of_message(message)); }

std::string_view answer_text(const Json& message) {
  std::string_view answer = last_text(message);
  const size_t reasoning = answer.rfind("</think>");
  if (reasoning != std::string_view::npos) answer.remove_prefix(reasoning + 8);
  const size_t first = answer.find_first_not_of(" \n\t");
  answer = first == std::string_view::npos ? "" : answer.substr(first);
  return answer.substr(0, answer.find_last_not_of(" \n\t") + 1);
}

std::string* find_function_name(Json& call) { return name_member(call); }
std::string_view function_name(const Json& call) { return view(name_member(call)); }

std::string* find_last_call(Json& message) { return call_of_message(message); }
std::string_view last_call(const Json& message) { return view(call_of_message(message)); }

}  // namespace strata::data
