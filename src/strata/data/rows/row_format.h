// What a row is: its kind, told from its columns, and whether its columns have the right types.
// Never renders templates, never tokenizes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strata/data/files/source.h"

namespace strata::data {

enum class RowKind {
  kText,            // the column dataset_text_field
  kMessages,        // messages, or conversations with from/value
  kPromptText,      // prompt and completion, strings
  kPromptMessages,  // prompt and completion, message lists
  kInstruction,     // Alpaca: instruction, output and, where given, input
  kTokens,          // input_ids
  // Only when the options ask:
  kPair,                // source and target of an encoder-decoder model
  kPreferenceText,      // prompt, chosen and rejected, strings
  kPreferenceMessages,  // the same as message lists
  kRatedText,           // prompt, completion and label, the first two strings
  kRatedMessages,       // the same as message lists
  kLabelled,            // a text and a label (labelled_row.h)
};

// What the label of a row is.
enum class LabelKind : uint8_t {
  kNone,
  kClass,   // one of several
  kLabels,  // a list of any of several
  kNumber,
};

struct RowFormat {
  RowKind kind = RowKind::kText;
  // Of kTokens: which other columns are there.
  bool has_labels = false;
  bool has_completion_mask = false;
  bool has_assistant_masks = false;
  bool shares_prompt = false;  // of preferences: the prompt is what both answers begin with
  // Of kLabelled; `names_numbers`: a number with a fraction may be the name of a class.
  LabelKind label = LabelKind::kNone;
  std::vector<std::string> text_columns = {};  // of kPair that of the source
  // Of the second of two texts, of kPair the target; empty: there is one.
  std::vector<std::string> pair_columns = {};
  std::string label_column = {};
  bool names_numbers = false;

  bool is_preference() const {
    return kind == RowKind::kPreferenceText || kind == RowKind::kPreferenceMessages;
  }
  bool is_rated() const { return kind == RowKind::kRatedText || kind == RowKind::kRatedMessages; }
  bool is_conversational() const {
    return kind == RowKind::kMessages || kind == RowKind::kPromptMessages ||
           kind == RowKind::kInstruction || kind == RowKind::kPreferenceMessages ||
           kind == RowKind::kRatedMessages;
  }
  bool has_prompt() const {
    return kind == RowKind::kPromptText || kind == RowKind::kPromptMessages ||
           kind == RowKind::kInstruction || is_preference() || is_rated();
  }
  bool operator==(const RowFormat&) const = default;
};

// Errors: FormatError with file and line; lists the columns if none of them makes a row.
RowFormat detect_format(const Row& row, const std::string& text_field);

// `found`: what the row is. Errors: FormatError that names `row` and `first_row`, where the first
// row of the set is, if that is another kind than `format`.
void require_format(const Row& row, const RowFormat& found, const RowFormat& format,
                    const std::string& first_row);

// Counts the row's columns with a value that nothing of a row of this format is made of.
void count_unused_columns(const Row& row, const RowFormat& format, const std::string& text_field,
                          std::map<std::string, int64_t>& unused);

// Whether the text in the column dataset_text_field has a part in what a row of this format
// becomes.
bool reads_text_field(const Row& row, const RowFormat& format, const std::string& text_field);

// The row's message list in the column as role/content objects. In "conversations", from/value
// become role/content and ShareGPT's roles the templates': human is user, gpt (bot, chatgpt, model)
// is assistant, observation is tool; function_call is the assistant's, with tool_calls where its
// text is the JSON of one or several calls.
// Errors: FormatError with file, line and message for anything else than a list of such objects.
Json read_messages(const Row& row, const std::string& column);
// The same of a list of the column; messages of both spellings.
Json read_messages_of(const Row& row, const std::string& column, const Json& list);

// The conversation of a row of kind kMessages: its list, after the column "system" as a message of
// that role. Errors: as read_messages; FormatError for two system messages of different text.
Json read_conversation(const Row& row);
// The column "system" as the first of the messages. Errors: as read_conversation.
void add_system(const Row& row, Json& messages);

// An Alpaca row as {"prompt": [..., user], "completion": [assistant]}: system and the pairs of
// history (what was asked and answered before) where given; instruction, a blank line and input
// (where there is one) are what the user says, output is the answer. Errors: FormatError.
Json read_instruction(const Row& row);
// Its prompt alone.
Json read_question(const Row& row);

// What messages call the value: "a string", "an empty list", "nothing" where there is none.
const char* type_of(const Json* value);

// The string in the column. Errors: FormatError with file and line.
const std::string& read_string(const Row& row, const std::string& column);

// The integers in the column. Errors: FormatError with file and line, also for values < low or >
// high.
std::vector<int32_t> read_integers(const Row& row, const std::string& column, int64_t low,
                                   int64_t high);

}  // namespace strata::data
