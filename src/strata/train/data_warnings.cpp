#include "strata/train/data_warnings.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/ranges.h>

#include "strata/base/counted.h"
#include "strata/config/recipes.h"
#include "strata/data/rows/hidden_texts.h"
#include "strata/data/rows/missing_answers.h"
#include "strata/text/templates/template_marks.h"

namespace strata::train {
namespace {

// What the template needs and the tokenizer lacks.
std::vector<std::string> template_warnings(const config::DataConfig& config,
                                           const text::TemplateSource& source,
                                           const Datasets& sets) {
  if (sets.train.stats().roles.empty() || !sets.chat_template) return {};
  const text::Tokenizer& tokenizer = *sets.tokenizer;
  const bool is_own = config.chat_template_path.empty() && config.chat_template_format == "none";
  std::vector<std::string> lines;
  const std::vector<std::string> marks =
      text::marks_without_token(source.text + "\n" + source.tool_text, tokenizer, is_own);
  if (!marks.empty()) {
    lines.push_back(fmt::format(
        "{} writes {}, which this tokenizer does not know as one token: the model gets the pieces; "
        "use a template that fits the tokenizer, or one that brings its tokens along "
        "(--chat_template_format chatml, or a folder as --chat_template_path)",
        source.name, fmt::join(marks, ", ")));
  }
  if (text::lacks_end_token(source.text, tokenizer)) {
    lines.push_back(
        fmt::format("{} writes eos_token, which this tokenizer does not have: nothing ends an "
                    "answer; pass --eos_token",
                    source.name));
  }
  return lines;
}

// Settings for rows of another kind than those that are there, and for tokens that nothing adds.
std::vector<std::string> idle_settings(const config::RunConfig& run, const Vocabulary& vocabulary,
                                       const Datasets& sets) {
  const config::DataConfig& config = run.data;
  const bool has_conversations = !sets.train.stats().roles.empty();
  std::vector<std::string> lines;
  // The result's tokenizer gets it all the same, and the model the tokens that come with it.
  const auto add = [&](const char* name) {
    lines.push_back(
        fmt::format("{}: formats no row, because none of the training data is a conversation; the "
                    "result's tokenizer has it",
                    name));
  };
  if (!has_conversations && !config.chat_template_path.empty()) add("chat_template_path");
  if (!has_conversations && config.chat_template_format != "none") add("chat_template_format");
  if (config.dataset_text_field != config::DataConfig().dataset_text_field &&
      sets.train.stats().num_text_fields == 0) {
    lines.emplace_back(
        "dataset_text_field: has no effect; no row of the training data uses that column");
  }
  const bool is_known = vocabulary.num_old_rows > 0;  // else nobody knows whether it grows
  if (is_known && vocabulary.num_rows == vocabulary.num_old_rows) {
    const char* reason = "has no effect; the model gets no rows for new tokens";
    if (!run.model.mean_resizing) lines.push_back(fmt::format("mean_resizing: {}", reason));
    if (run.model.resize_to_multiple_of) {
      lines.push_back(fmt::format("resize_to_multiple_of: {}", reason));
    }
  }
  return lines;
}

// `train.jsonl:7, train.jsonl:9, ...`
std::string places_of(const data::HiddenTexts& texts) {
  const bool are_all = texts.count == static_cast<int64_t>(texts.first.size());
  return fmt::format("{}{}", fmt::join(texts.first, ", "), are_all ? "" : ", ...");
}

// `4 texts of role "critic" (train.jsonl:7, ...)`
std::string with_places(const std::string& name, const data::HiddenTexts& texts) {
  return fmt::format("{} {} ({})", texts.count, name, places_of(texts));
}

// What the conversations of a set lack, rendered or from the start, and lists that they show as
// Python does.
std::vector<std::string> conversation_warnings(const text::TemplateSource& source,
                                               const data::TokenStore& set,
                                               const std::string& prefix) {
  std::vector<std::string> lines;
  for (const auto& [name, texts] : set.stats().hidden_texts) {
    lines.push_back(
        fmt::format("{}{} leaves out {}: the model never sees them; use a template that shows "
                    "them, or give the messages a role that it knows",
                    prefix, source.name, with_places(name, texts)));
  }
  for (const auto& [name, texts] : set.stats().printed_parts) {
    if (name.starts_with(data::kQuotedArguments)) {
      lines.push_back(fmt::format(
          "{}{} quotes {}, which are JSON text already: the model learns to write them as a text "
          "in a text, \"{{\\\"x\\\": 1}}\"; give each call its arguments as an object",
          prefix, source.name, with_places(name, texts)));
      continue;
    }
    lines.push_back(
        fmt::format("{}{} takes texts and prints {}, which are no texts: the model sees "
                    "them as Python shows them, like \"[{{'type': ...\"; give each message its "
                    "content as one text",
                    prefix, source.name, with_places(name, texts)));
  }
  for (const auto& [name, texts] : set.stats().missing_answers) {
    lines.push_back(
        fmt::format("{}{} {} ({}): the model learns {}; leave the rows out, or give them answers",
                    prefix, counted(texts.count, "row"), name, places_of(texts),
                    name == data::kEmptyAnswer ? "to end at once" : "to ask, not to answer"));
  }
  return lines;
}

// Nothing is learnt from such a pair.
int64_t count_same_answers(const data::TokenStore& pairs) {
  int64_t count = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const data::ExampleView row = pairs[i];
    const auto half = static_cast<size_t>(row.lengths[0]);
    count += std::ranges::equal(row.ids.first(half), row.ids.subspan(half));
  }
  return count;
}

// As Python's round(): of the number that the decimal's digits are nearest to.
double two_decimals(double value) { return std::stod(fmt::format("{:.2f}", value)); }

// What the sums of both weights should be to each other (the paper's equation 8: from 1 to 4/3); as
// the reference says it, of training rows.
std::vector<std::string> rating_warnings(const config::RunConfig& config,
                                         const data::DatasetStats& stats,
                                         const std::string& prefix) {
  if (!config::recipe_of(config).reads_ratings) return {};
  const double desirable_weight = config.preference.desirable_weight;
  const double undesirable_weight = config.preference.undesirable_weight;
  std::vector<std::string> lines;
  if (stats.num_desirable == 0 || stats.num_undesirable == 0) {
    lines.push_back(fmt::format("{}none of {} is {}: what sets them apart is not learnt", prefix,
                                counted(stats.num_desirable + stats.num_undesirable, "answer"),
                                stats.num_desirable == 0 ? "desirable" : "undesirable"));
    return lines;
  }
  if (!prefix.empty() || stats.num_desirable == stats.num_undesirable) return lines;
  const auto desirable = static_cast<double>(stats.num_desirable);
  const auto undesirable = static_cast<double>(stats.num_undesirable);
  const double desirable_from = two_decimals(undesirable * undesirable_weight / desirable);
  const double desirable_to = two_decimals(undesirable * undesirable_weight / desirable * 1.33);
  const double undesirable_from = two_decimals(desirable * desirable_weight / undesirable / 1.33);
  const double undesirable_to = two_decimals(desirable * desirable_weight / undesirable);
  const bool is_usual =
      (desirable_from <= desirable_weight && desirable_weight <= desirable_to) ||
      (undesirable_from <= undesirable_weight && undesirable_weight <= undesirable_to);
  if (is_usual) return lines;
  lines.push_back(fmt::format(
      "{} desirable and {} undesirable answers with the weights {} and {}: one kind outweighs the "
      "other; set --desirable_weight from {} to {}, or --undesirable_weight from {} to {}, not "
      "both",
      stats.num_desirable, stats.num_undesirable, desirable_weight, undesirable_weight,
      desirable_from, desirable_to, undesirable_from, undesirable_to));
  return lines;
}

// What a document should not be longer than, and why.
struct LengthLimit {
  int64_t tokens;
  std::string name;
};

// As the reference's tokenizer warns: it cuts nothing either.
std::optional<std::string> length_warning(const LengthLimit& limit, const data::TokenStore& set) {
  int64_t longest = 0, count = 0;
  for (size_t i = 0; i < set.size(); ++i) {
    int64_t document = 0;
    for (const int32_t length : set.lengths(i)) document = std::max<int64_t>(document, length);
    longest = std::max(longest, document);
    count += document > limit.tokens;
  }
  if (count == 0) return std::nullopt;
  std::vector<std::string> named;
  for (const data::LongRow& row : set.stats().longest_rows) {
    if (row.tokens > limit.tokens) {
      named.push_back(fmt::format("{} with {}", row.where, row.tokens));
    }
  }
  return fmt::format(
      "{} longer than the {} tokens of the {} (the longest has {}{}{}): the model was not "
      "made for such lengths; lower --max_length",
      count == 1 ? "1 row is" : fmt::format("{} rows are", count), limit.tokens, limit.name,
      longest, named.empty() ? "" : "; ", fmt::join(named, ", "));
}

std::vector<LengthLimit> length_limits(const config::RunConfig& config, const ModelLimits& model,
                                       const Datasets& sets) {
  std::vector<LengthLimit> limits;
  if (const std::optional<int64_t> tokens = sets.tokenizer->model_max_length()) {
    limits.push_back({*tokens, "tokenizer's model_max_length"});
  }
  // Virtual tokens stand before each document and take positions of their own.
  const int64_t positions = model.positions - config.lora.num_virtual_tokens;
  if (model.positions == 0) return limits;
  if (!limits.empty() && limits[0].tokens == positions) limits.clear();
  limits.push_back(
      {positions, fmt::format("model's {}{}", model.positions_key,
                              config.lora.num_virtual_tokens == 0 ? "" : " after virtual tokens")});
  return limits;
}

}  // namespace

std::vector<std::string> find_data_mistakes(const config::RunConfig& config,
                                            const ModelLimits& limits, const Vocabulary& vocabulary,
                                            const Datasets& sets) {
  const text::TemplateSource& source = vocabulary.chat_template;
  std::vector<std::string> lines = idle_settings(config, vocabulary, sets);
  for (std::string& line : template_warnings(config.data, source, sets)) {
    lines.push_back(std::move(line));
  }
  if (const int64_t asked = config.data.max_length.value_or(0); asked != sets.max_length) {
    lines.push_back(fmt::format(
        "max_length: found {}, and the tokenizer's model_max_length is {}: rows end there; lower "
        "--max_length",
        asked, sets.max_length));
  }
  if (sets.tokenizer->splits_special_tokens()) {
    lines.push_back(
        "the tokenizer cuts special tokens that stand in a text into pieces, also those that the "
        "template or the end of a text puts there (split_special_tokens in tokenizer_config.json): "
        "the model gets the pieces; set it to false");
  }
  const auto add = [&](const data::TokenStore& set, const std::string& prefix) {
    for (std::string& line : conversation_warnings(source, set, prefix)) {
      lines.push_back(std::move(line));
    }
    const int64_t same = config::recipe_of(config).reads_pairs ? count_same_answers(set) : 0;
    if (same > 0) {
      lines.push_back(
          fmt::format("{}{} of {} have two answers that are the same: nothing tells "
                      "them apart",
                      prefix, same, counted(set.size(), "pair")));
    }
    for (std::string& line : rating_warnings(config, set.stats(), prefix)) {
      lines.push_back(std::move(line));
    }
    for (const LengthLimit& limit : length_limits(config, limits, sets)) {
      if (const auto line = length_warning(limit, set)) lines.push_back(prefix + *line);
    }
  };
  add(sets.train, "");
  for (const data::TokenStore* set : sets.evaluations()) add(*set, "evaluation: ");
  return lines;
}

std::vector<std::string> describe_losses(const data::DatasetStats& stats,
                                         const config::RunConfig& config, int64_t max_length) {
  const config::DataConfig& settings = config.data;
  // A pair is two rated answers.
  const char* noun = config::recipe_of(config).reads_ratings ? "answer" : "row";
  std::vector<std::string> lines;
  if (stats.num_dropped > 0) {
    lines.push_back(
        fmt::format("data: left out {} without a trained token after truncation "
                    "to {}",
                    counted(stats.num_dropped, noun), max_length));
  }
  if (stats.num_long > 0) {
    lines.push_back(fmt::format("data: {} with more than {} tokens (long_rows: {})",
                                counted(stats.num_long, noun), max_length, settings.long_rows));
  }
  const auto add_cut = [&](int64_t count, const char* noun, const char* setting, int64_t most) {
    if (count == 0) return;
    lines.push_back(
        fmt::format("data: cut {} to {} tokens ({})", counted(count, noun), most, setting));
  };
  add_cut(stats.num_cut_sources, "source", "max_source_length", settings.max_source_length);
  add_cut(stats.num_cut_targets, "target", "max_target_length", settings.max_target_length);
  if (stats.bad_rows.count > 0) {
    lines.push_back(fmt::format("data: left out {}; the first: {}",
                                counted(stats.bad_rows.count, "bad row"), stats.bad_rows.first));
  }
  if (!stats.unused_columns.empty()) {
    std::vector<std::string> columns;
    for (const auto& [name, rows] : stats.unused_columns) {
      columns.push_back(fmt::format("{} ({})", name, counted(rows, "row")));
    }
    const bool has_preferences =
        stats.unused_columns.contains("chosen") && stats.unused_columns.contains("rejected");
    // Answers that somebody called bad would be imitated with the others.
    const char* other = has_preferences ? ", strata dpo trains on preferences"
                        : config.recipe == "sft" && stats.unused_columns.contains("label")
                            ? ", strata kto learns from answers whose label is true or false"
                            : "";
    lines.push_back(
        fmt::format("data: columns without use: {}; --dataset_columns maps other names{}",
                    fmt::join(columns, ", "), other));
  }
  if (stats.num_split_prompts > 0) {
    lines.push_back(
        fmt::format("data: {} prompts do not end at a token boundary of prompt + completion",
                    stats.num_split_prompts));
  }
  return lines;
}

}  // namespace strata::train
