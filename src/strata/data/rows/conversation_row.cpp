#include "strata/data/rows/conversation_row.h"

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {
namespace {

bool has_both(const Json& fields, const char* first, const char* second, bool are_lists) {
  const auto is_one = [&](const char* name) {
    const auto it = fields.find(name);
    return it != fields.end() && (are_lists ? it->is_array() : it->is_string());
  };
  return is_one(first) && is_one(second);
}

bool has_turns(const Json& fields) {
  return has_both(fields, "prompt", "completion", /*are_lists=*/true);
}

}  // namespace

bool is_conversation(const Json& fields) {
  if (!fields.is_object()) return false;
  return fields.contains("messages") || fields.contains("conversations") || has_turns(fields) ||
         has_both(fields, "instruction", "output", /*are_lists=*/false);
}

Json read_whole_conversation(const Row& row) {
  if (row.fields.contains("messages") || row.fields.contains("conversations")) {
    return read_conversation(row);
  }
  Json turns = has_turns(row.fields) ? Json{{"prompt", read_messages(row, "prompt")},
                                            {"completion", read_messages(row, "completion")}}
                                     : read_instruction(row);
  Json messages = std::move(turns["prompt"]);
  for (Json& message : turns["completion"]) messages.push_back(std::move(message));
  return messages;
}

Json template_variables(const Row& row) {
  Json extra = Json::object();
  // An empty text is what a column of texts has for none.
  if (const Json* tools = row.find("tools"); tools != nullptr && *tools != Json("")) {
    extra["tools"] = tools->is_string() ? parse_json_exactly(tools->get_ref<const std::string&>(),
                                                             row.where() + ": tools")
                                        : *tools;
  }
  const Json* more = row.find("chat_template_kwargs");
  if (more == nullptr) return extra;
  if (!more->is_object()) {
    throw FormatError("{}: found no object in \"chat_template_kwargs\", expected one", row.where());
  }
  for (const auto& [name, value] : more->items()) {
    if (name == "chat_template" || name == "add_generation_prompt") {
      throw FormatError(
          "{}: found \"{}\" in \"chat_template_kwargs\", expected only variables of the template; "
          "a run has one template, see --chat_template_path",
          row.where(), name);
    }
    extra[name] = value;
  }
  return extra;
}

}  // namespace strata::data
