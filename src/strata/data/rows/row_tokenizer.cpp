#include "strata/data/rows/row_tokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/labels.h"
#include "strata/data/rows/assistant_mask.h"
#include "strata/data/rows/conversation_row.h"
#include "strata/data/rows/hidden_texts.h"
#include "strata/data/rows/labelled_tokenizer.h"
#include "strata/data/rows/missing_answers.h"
#include "strata/data/rows/preference_row.h"
#include "strata/data/rows/rated_row.h"

namespace strata::data {
namespace {

Example document(std::vector<int32_t> ids) {
  Example example;
  example.labels = ids;
  example.lengths.assign(1, static_cast<int32_t>(ids.size()));
  example.ids = std::move(ids);
  return example;
}

// Sets the labels to -100 where the mask is 0.
template <typename Mask>
void apply_mask(const Mask& mask, Example& example) {
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) example.labels[i] = kNotTrained;
  }
}

// Every token is read; none is a label.
Example join_rewarded(const Row& row, Example chosen, Example rejected) {
  if (row.find("margin") != nullptr) {
    throw FormatError(
        "{}: found a column \"margin\", expected pairs without one: by how much an answer is "
        "better "
        "is not learnt; rename it with --dataset_columns or remove it",
        row.where());
  }
  if (chosen.ids.empty() || rejected.ids.empty()) {
    throw FormatError("{}: found no token in \"{}\", expected a text", row.where(),
                      chosen.ids.empty() ? "chosen" : "rejected");
  }
  Example pair = join_answers({}, std::move(chosen), std::move(rejected)).pair;
  pair.labels = pair.ids;
  return pair;
}

// What several documents of a row lack stands in their prompt and counts once.
void join_notes(TokenizedRow& document, TokenizedRow& row) {
  for (const auto names : {&TokenizedRow::hidden_texts, &TokenizedRow::printed_parts}) {
    std::ranges::sort(document.*names);
    std::vector<std::string> joined;
    std::ranges::set_union(row.*names, document.*names, std::back_inserter(joined));
    row.*names = std::move(joined);
  }
}

void append_parts(const Example& document, int32_t prompt_size, Example& parts) {
  parts.ids.insert(parts.ids.end(), document.ids.begin(), document.ids.end());
  parts.labels.insert(parts.labels.end(), document.labels.begin(), document.labels.end());
  parts.lengths.push_back(prompt_size);
  parts.lengths.push_back(static_cast<int32_t>(document.ids.size()) - prompt_size);
}

void check_options(const PrepareOptions& options, const RowFormat& format,
                   const text::ChatTemplate* tmpl) {
  if (options.assistant_only_loss && !format.is_conversational()) {
    throw ConfigError(
        "assistant_only_loss: found rows without messages in {}, expected conversations; turn it "
        "off",
        options.subject);
  }
  if (options.completion_only_loss.value_or(false) && !format.has_prompt() &&
      !format.has_completion_mask) {
    throw ConfigError(
        "completion_only_loss: found rows without prompt and completion in {}, expected both "
        "columns; turn it off",
        options.subject);
  }
  if (format.is_conversational() && tmpl == nullptr) {
    throw ConfigError(
        "{}: found conversations, expected a tokenizer with a chat template; pass "
        "--chat_template_path",
        options.subject);
  }
}

}  // namespace

RowTokenizer::RowTokenizer(const text::Tokenizer& tokenizer, const text::ChatTemplate* tmpl,
                           const PrepareOptions& options, const RowFormat& format,
                           std::string first_row)
    : tokenizer_(tokenizer),
      template_(tmpl),
      options_(options),
      format_(format),
      first_row_(std::move(first_row)),
      completion_only_(options.completion_only_loss.value_or(format.has_prompt())),
      adds_specials_(options.add_special_tokens.value_or(!format.is_conversational())) {
  check_options(options, format, tmpl);
  const bool ends_text = format.kind == RowKind::kText || format.kind == RowKind::kPromptText ||
                         format.kind == RowKind::kPreferenceText ||
                         format.kind == RowKind::kRatedText;
  if (!ends_text && !options.append_concat_token) return;
  if (!tokenizer.specials().eos) {
    throw ConfigError(
        "{}: found a tokenizer without an end-of-sequence token, expected one to end each text "
        "with; pass --eos_token",
        options.subject);
  }
  eos_ = *tokenizer.specials().eos;
}

TokenizedRow RowTokenizer::tokenize(const Row& row) const {
  TokenizedRow result;
  switch (format_.kind) {
    case RowKind::kText:
      result = tokenize_text(row);
      break;
    case RowKind::kMessages:
      result = tokenize_messages(row);
      break;
    case RowKind::kPromptText:
      result = tokenize_prompt_text(row);
      break;
    case RowKind::kPromptMessages:
      result = tokenize_prompt_messages(row);
      break;
    case RowKind::kInstruction:
      result = tokenize_instruction(row);
      break;
    case RowKind::kTokens:
      result = read_tokens(row);
      break;
    case RowKind::kPair: {
      TokenizedPair pair = tokenize_pair(row, format_, tokenizer_, *options_.pairs);
      result = {.example = std::move(pair.example),
                .source_is_cut = pair.source_is_cut,
                .target_is_cut = pair.target_is_cut};
      break;
    }
    case RowKind::kPreferenceText:
    case RowKind::kPreferenceMessages:
      result = options_.rated ? tokenize_rated(row) : tokenize_preference(row);
      break;
    case RowKind::kRatedText:
    case RowKind::kRatedMessages:
      result = tokenize_rated(row);
      break;
    case RowKind::kLabelled: {
      TokenizedLabelled text = tokenize_labelled(row, format_, tokenizer_, options_, first_row_);
      result = {.example = std::move(text.example),
                .labels = std::move(text.labels),
                .is_cut = text.is_cut};
      break;
    }
  }
  if (options_.append_concat_token) append_eos(result.example);
  check_ids(row, result.example);
  return result;
}

TokenizedRow RowTokenizer::tokenize_text(const Row& row) const {
  std::string text = read_string(row, options_.dataset_text_field);
  if (!text.ends_with(eos_)) text += eos_;
  return {.example = document(encode(text))};
}

TokenizedRow RowTokenizer::tokenize_prompt_text(const Row& row) const {
  std::string prompt = read_string(row, "prompt");
  std::string completion = read_string(row, "completion");
  const bool is_empty = is_blank(completion);
  // As the reference: a text column that does not end with the token takes it, even though it is
  // not what trains; else the completion does.
  const std::string& field = options_.dataset_text_field;
  if (row.find(field) != nullptr && !read_string(row, field).ends_with(eos_)) {
    if (field == "prompt") prompt += eos_;
    if (field == "completion") completion += eos_;
  } else if (!completion.ends_with(eos_)) {
    completion += eos_;
  }
  TokenizedRow result{.example = document(encode(prompt + completion))};
  mask_prompt(encode(prompt), result);
  if (is_empty) result.missing_answers.emplace_back(kEmptyAnswer);
  return result;
}

TokenizedRow RowTokenizer::tokenize_messages(const Row& row) const {
  return tokenize_chat(row, read_conversation(row), template_variables(row));
}

TokenizedRow RowTokenizer::tokenize_prompt_messages(const Row& row) const {
  return tokenize_turns(row, read_messages(row, "prompt"), read_messages(row, "completion"));
}

TokenizedRow RowTokenizer::tokenize_instruction(const Row& row) const {
  Json turns = read_instruction(row);
  return tokenize_turns(row, std::move(turns["prompt"]), std::move(turns["completion"]));
}

TokenizedRow RowTokenizer::tokenize_turns(const Row& row, Json messages, Json completion) const {
  const Json extra = template_variables(row);
  const std::string prompt =
      template_->render(messages, tokenizer_.specials(), /*add_generation_prompt=*/true, extra)
          .text;
  for (Json& message : completion) messages.push_back(std::move(message));
  TokenizedRow result = tokenize_chat(row, messages, extra);
  mask_prompt(encode(prompt), result);
  return result;
}

TokenizedRow RowTokenizer::tokenize_preference(const Row& row) const {
  const bool are_rewarded = options_.preference->are_rewarded;
  const auto [prompt, chosen, rejected] =
      are_rewarded ? read_whole_answers(row, format_) : read_preference(row, format_);
  std::array<TokenizedRow, 2> documents = {tokenize_answer(row, prompt, chosen),
                                           tokenize_answer(row, prompt, rejected)};
  TokenizedRow result{.example = {}, .missing_answers = documents[0].missing_answers};
  if (are_rewarded) {
    result.example =
        join_rewarded(row, std::move(documents[0].example), std::move(documents[1].example));
  } else {
    const std::vector<int32_t> learnt = documents[0].example.labels;
    JoinedAnswers joined =
        join_answers(encode(prompt_text(row, prompt)), std::move(documents[0].example),
                     std::move(documents[1].example));
    if (const size_t answer = find_untrained_answer(joined.pair); answer < documents.size()) {
      throw FormatError("{}: found no token to train on in \"{}\", expected an answer to a prompt",
                        row.where(), answer == 0 ? "chosen" : "rejected");
    }
    if (options_.preference->learns_prompt) train_prompt(row.where(), learnt, joined);
    result.prompt_is_split = joined.prompt_is_split;
    result.example = std::move(joined.pair);
  }
  for (TokenizedRow& each : documents) join_notes(each, result);
  return result;
}

TokenizedRow RowTokenizer::tokenize_rated(const Row& row) const {
  const auto [prompt, answers, rating] = read_rated(row, format_);
  const std::vector<int32_t> prompt_ids = encode(prompt_text(row, prompt));
  TokenizedRow result;
  result.example.rating = rating;
  for (const Json& answer : answers) {
    TokenizedRow document = tokenize_answer(row, prompt, answer);
    bool is_split = false;
    const int32_t prompt_size = mask_shared(prompt_ids, document.example, is_split);
    if (find_untrained_answer(document.example) == 0) {
      const char* column = answers.size() == 1           ? "completion"
                           : &answer == &answers.front() ? "chosen"
                                                         : "rejected";
      throw FormatError("{}: found no token to train on in \"{}\", expected an answer to a prompt",
                        row.where(), column);
    }
    result.prompt_is_split |= is_split;
    // Only what is to become likelier should not be empty.
    const bool is_wanted = rating != Rating::kUndesirable && &answer == &answers.front();
    if (is_wanted) result.missing_answers = document.missing_answers;
    join_notes(document, result);
    append_parts(document.example, prompt_size, result.example);
  }
  return result;
}

std::string RowTokenizer::prompt_text(const Row& row, const Json& prompt) const {
  if (!format_.is_conversational()) return prompt.get<std::string>();
  return template_
      ->render(prompt, tokenizer_.specials(), /*add_generation_prompt=*/true,
               template_variables(row))
      .text;
}

TokenizedRow RowTokenizer::tokenize_answer(const Row& row, const Json& prompt,
                                           const Json& answer) const {
  if (format_.is_conversational()) {
    Json messages = prompt;
    messages.insert(messages.end(), answer.begin(), answer.end());
    return tokenize_chat(row, messages, template_variables(row));
  }
  TokenizedRow result;
  std::string text = answer.get<std::string>();
  if (is_blank(text)) result.missing_answers.emplace_back(kEmptyAnswer);
  if (!text.ends_with(eos_)) text += eos_;
  result.example = document(encode(prompt.get<std::string>() + text));
  return result;
}

TokenizedRow RowTokenizer::tokenize_chat(const Row& row, const Json& messages,
                                         const Json& extra) const {
  const text::Tokenizer::Specials& specials = tokenizer_.specials();
  const bool has_unlearnt = has_untrained(messages);
  if (!options_.assistant_only_loss && !has_unlearnt) {
    const std::string text =
        template_->render(messages, specials, /*add_generation_prompt=*/false, extra).text;
    return {.example = document(encode(text)),
            .hidden_texts = find_hidden_texts(*template_, messages, specials, extra, text),
            .printed_parts = find_printed_parts(messages, text),
            .missing_answers = find_missing_answers(messages)};
  }
  const MarkedChat chat = options_.assistant_only_loss
                              ? render_with_assistant_spans(*template_, messages, specials, extra)
                              : render_with_untrained_spans(*template_, messages, specials, extra);
  const std::vector<text::Token> tokens = tokenizer_.encode_with_ranges(chat.text, adds_specials_);
  std::vector<uint8_t> mask = mask_spans(tokens, chat.text, chat.spans);
  if (!options_.assistant_only_loss) {
    for (uint8_t& is_learnt : mask) is_learnt = is_learnt == 0;
  } else if (std::find(mask.begin(), mask.end(), 1) == mask.end()) {
    throw FormatError(
        "{}: found no token that the assistant wrote{}, expected at least one for "
        "assistant_only_loss; remove the row or give it an assistant message",
        row.where(), has_unlearnt ? " and that is learnt (\"weight\" and \"train\" say no)" : "");
  }
  std::vector<int32_t> ids;
  ids.reserve(tokens.size());
  for (const text::Token& token : tokens) ids.push_back(token.id);
  TokenizedRow result{
      .example = document(std::move(ids)),
      .hidden_texts = find_hidden_texts(*template_, messages, specials, extra, chat.text),
      .printed_parts = find_printed_parts(messages, chat.text),
      .missing_answers = find_missing_answers(messages)};
  apply_mask(mask, result.example);
  return result;
}

std::vector<int32_t> RowTokenizer::encode(const std::string& text) const {
  return tokenizer_.encode(text, adds_specials_);
}

// The token is trained: it is what ends the answer.
void RowTokenizer::append_eos(Example& example) const {
  const int32_t eos = *tokenizer_.eos_id();
  if (!example.ids.empty() && example.ids.back() == eos) return;
  example.ids.push_back(eos);
  example.labels.push_back(eos);
  example.lengths.assign(1, static_cast<int32_t>(example.ids.size()));
}

// The completion starts where the prompt's tokens and the row's part, which need not be where the
// prompt's text ends.
void RowTokenizer::mask_prompt(const std::vector<int32_t>& prompt, TokenizedRow& row) const {
  Example& example = row.example;
  const auto [end, unused] =
      std::mismatch(prompt.begin(), prompt.end(), example.ids.begin(), example.ids.end());
  row.prompt_is_split = end != prompt.end();
  if (completion_only_) {
    std::fill_n(example.labels.begin(), end - prompt.begin(), kNotTrained);
  }
}

TokenizedRow RowTokenizer::read_tokens(const Row& row) const {
  constexpr int64_t kHighest = std::numeric_limits<int32_t>::max();
  TokenizedRow result{.example = document(read_integers(row, "input_ids", 0, kHighest))};
  Example& example = result.example;
  const auto read_column = [&](const char* column, int64_t low, int64_t high) {
    std::vector<int32_t> values = read_integers(row, column, low, high);
    if (values.size() != example.ids.size()) {
      throw FormatError("{}: found {} values in \"{}\", expected {} as in \"input_ids\"",
                        row.where(), values.size(), column, example.ids.size());
    }
    return values;
  };
  if (format_.has_labels) example.labels = read_column("labels", kNotTrained, kHighest);
  // As the reference: only an explicit completion_only_loss uses the mask, since the columns that
  // would turn it on by itself are not there.
  const bool use_completion = format_.has_completion_mask && completion_only_;
  if (use_completion) apply_mask(read_column("completion_mask", 0, 1), example);
  if (format_.has_assistant_masks) apply_mask(read_column("assistant_masks", 0, 1), example);
  return result;
}

void RowTokenizer::check_ids(const Row& row, const Example& example) const {
  const int64_t size = options_.vocab_size;
  for (size_t i = 0; i < example.ids.size(); ++i) {
    const int32_t id = example.ids[i];
    if (size > 0 && id >= size) {
      throw FormatError(
          "{}: found token id {} at position {}, expected ids below {} (the model's vocabulary); "
          "use the tokenizer that belongs to the model",
          row.where(), id, i, size);
    }
    const int32_t label = example.labels[i];
    if (label != kNotTrained && (label < 0 || (size > 0 && label >= size))) {
      throw FormatError("{}: found label {} at position {}, expected -100 or a token id{}",
                        row.where(), label, i, size > 0 ? fmt::format(" below {}", size) : "");
    }
  }
}

}  // namespace strata::data
