#include "strata/data/inspect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>
#include <unordered_set>

#include <fmt/format.h>
#include <xxhash.h>

#include "strata/base/labels.h"

namespace strata::data {
namespace {

class DocumentInspector {
 public:
  DocumentInspector(const text::Tokenizer& tokenizer, Inspection& result)
      : tokenizer_(tokenizer),
        bos_(tokenizer.bos_id()),
        eos_(tokenizer.eos_id()),
        result_(result) {}

  void add(std::span<const int32_t> ids, std::span<const int32_t> labels) {
    if (ids.empty()) return;
    ++result_.documents;
    const auto trained = static_cast<int64_t>(
        labels.size() - static_cast<size_t>(std::count(labels.begin(), labels.end(), kNotTrained)));
    result_.trained_tokens += trained;
    result_.masked += trained == 0;
    result_.no_end += trained > 0 && !ends(labels);
    result_.two_bos += bos_ && ids.size() > 1 && ids[0] == *bos_ && ids[1] == *bos_;
    result_.duplicates += is_seen(ids, labels);
  }

  // Whether the same came before.
  bool is_seen(std::span<const int32_t> ids, std::span<const int32_t> labels) {
    const uint64_t first = XXH3_64bits(ids.data(), ids.size_bytes());
    return !seen_.insert(XXH3_64bits_withSeed(labels.data(), labels.size_bytes(), first)).second;
  }

 private:
  // Whether an end is the last that is trained, but for blanks such as chatml's line end after it.
  bool ends(std::span<const int32_t> labels) const {
    for (size_t i = labels.size(); i > 0; --i) {
      const int32_t id = labels[i - 1];
      if (id == kNotTrained) continue;
      if (is_end(id)) return true;
      const std::string text = tokenizer_.decode({&id, 1}, /*skip_special_tokens=*/false);
      if (text.find_first_not_of(" \t\r\n") != std::string::npos) return false;
    }
    return false;
  }
  bool is_end(int32_t id) const {
    return (eos_ && id == *eos_) || (id < tokenizer_.vocab_size() && tokenizer_.is_special(id));
  }

  const text::Tokenizer& tokenizer_;
  const std::optional<int32_t> bos_, eos_;
  Inspection& result_;
  std::unordered_set<uint64_t> seen_;
};

void count_lengths(const TokenStore& store, Inspection& result) {
  for (size_t i = 0; i < store.size(); ++i) {
    const int64_t size = store.num_own_tokens(i);
    result.shortest = i == 0 ? size : std::min(result.shortest, size);
    result.longest = std::max(result.longest, size);
  }
  // Round widths read better: 1, 2, 5, 10, 20, ...
  for (int64_t base = 1; result.longest / result.bar_tokens >= kMaxBars; base *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      if (result.longest / result.bar_tokens >= kMaxBars) result.bar_tokens = base * factor;
    }
  }
  result.bars.assign(static_cast<size_t>(result.longest / result.bar_tokens) + 1, 0);
  for (size_t i = 0; i < store.size(); ++i) {
    ++result.bars[static_cast<size_t>(store.num_own_tokens(i) / result.bar_tokens)];
  }
}

void count_roles_in(const Json& messages, std::map<std::string, int64_t>& roles) {
  if (!messages.is_array()) return;
  for (const Json& message : messages) {
    if (!message.is_object()) continue;
    for (const char* key : {"role", "from"}) {
      const auto role = message.find(key);
      if (role != message.end() && role->is_string()) {
        count_name(role->get_ref<const std::string&>(), roles);
      }
    }
  }
}

// Roles of messages that nobody knows, a line each.
std::vector<std::string> odd_roles(const std::map<std::string, int64_t>& roles,
                                   const std::string& template_source) {
  std::vector<std::string> lines;
  static const std::set<std::string> kRoles = {
      "system", "user", "assistant", "tool",    "function", "developer", "ipython",
      "human",  "gpt",  "bot",       "chatgpt", "model",    "prompter"};
  for (const auto& [role, count] : roles) {
    if (kRoles.contains(role) || template_source.find("'" + role + "'") != std::string::npos ||
        template_source.find('"' + role + '"') != std::string::npos) {
      continue;
    }
    if (role == kOtherNames) {
      lines.push_back(fmt::format("{} messages have further roles", count));
      continue;
    }
    std::string low = role;
    std::ranges::transform(low, low.begin(), [](unsigned char c) { return std::tolower(c); });
    lines.push_back(
        fmt::format("{} the role \"{}\", which neither the template nor any common one names{}",
                    count == 1 ? "1 message has" : fmt::format("{} messages have", count), role,
                    kRoles.contains(low) ? "; did you mean \"" + low + "\"?" : ""));
  }
  return lines;
}

}  // namespace

Inspection inspect(const TokenStore& store, const text::Tokenizer& tokenizer, RowsOf kind) {
  Inspection result;
  result.rows = static_cast<int64_t>(store.size());
  DocumentInspector documents(tokenizer, result), rows(tokenizer, result);
  for (size_t i = 0; i < store.size(); ++i) {
    const ExampleView& row = store[i];
    result.tokens += store.num_own_tokens(i);
    size_t begin = 0;
    for (const int32_t length : row.lengths) {
      const auto size = static_cast<size_t>(length);
      const bool is_source = kind == RowsOf::kPairs && begin == 0;
      const bool is_of_another = kind == RowsOf::kRated && begin > 0;
      if (!is_source && !is_of_another) {
        documents.add(row.ids.subspan(begin, size), row.labels.subspan(begin, size));
      }
      begin += size;
    }
    if (kind == RowsOf::kDocuments) continue;
    const auto learnt = static_cast<size_t>(store.num_own_tokens(i));
    result.duplicate_rows += rows.is_seen(row.ids.first(learnt), row.labels.first(learnt));
  }
  if (kind != RowsOf::kDocuments) result.duplicates = 0;  // the same answer to another question
  if (kind == RowsOf::kLabelled) result.no_end = 0;
  count_lengths(store, result);
  return result;
}

void count_roles(const std::vector<Row>& rows, std::map<std::string, int64_t>& roles) {
  for (const Row& row : rows) {
    for (const char* column : {"messages", "conversations", "prompt", "completion"}) {
      if (const Json* messages = row.find(column)) count_roles_in(*messages, roles);
    }
  }
}

void count_preference_roles(const std::vector<Row>& rows, std::map<std::string, int64_t>& roles) {
  for (const Row& row : rows) {
    for (const char* column : {"prompt", "instruction", "conversations", "chosen", "rejected"}) {
      const Json* value = row.find(column);
      if (value == nullptr) continue;
      const std::string_view name = column;
      if (value->is_string()) {
        ++roles[name == "chosen" || name == "rejected" ? "assistant" : "user"];
      } else {
        count_roles_in(value->is_object() ? Json::array({*value}) : *value, roles);
      }
    }
  }
}

double padding_part(const TokenStore& store, const std::vector<std::vector<int64_t>>& batches,
                    RowsOf kind) {
  const bool are_preferences = kind == RowsOf::kPreferences;
  double real = 0, padded = 0;
  for (const std::vector<int64_t>& batch : batches) {
    size_t longest = 0;
    for (const int64_t i : batch) {
      const ExampleView row = store[static_cast<size_t>(i)];
      const auto tokens = static_cast<size_t>(store.num_own_tokens(static_cast<size_t>(i)));
      longest = std::max(
          longest, are_preferences ? static_cast<size_t>(std::ranges::max(row.lengths)) : tokens);
      real += static_cast<double>(tokens);
    }
    padded += static_cast<double>(longest * batch.size() * (are_preferences ? 2 : 1));
  }
  return padded > 0 ? 1 - real / padded : 0;
}

std::vector<std::string> find_mistakes(const Inspection& inspection,
                                       const std::map<std::string, int64_t>& roles,
                                       const std::string& template_source) {
  std::vector<std::string> lines;
  const auto of_documents = [&](int64_t count) {
    return fmt::format("{} of {} documents", count, inspection.documents);
  };
  if (inspection.no_end > 0) {
    const bool everywhere = inspection.no_end + inspection.masked == inspection.documents;
    lines.push_back(fmt::format(
        "no end token is trained in {}{}: a model that never learns to stop generates forever",
        of_documents(inspection.no_end),
        everywhere ? "" : " (cut at max_length, or another end than the others)"));
  }
  if (inspection.two_bos > 0) {
    lines.push_back(fmt::format(
        "{} begin with the BOS token twice: text and tokenizer both write it; remove it from one "
        "(--add_special_tokens false)",
        of_documents(inspection.two_bos)));
  }
  if (inspection.masked > 0) {
    lines.push_back(fmt::format("{} have no trained token", of_documents(inspection.masked)));
  }
  if (inspection.duplicates > 0) {
    lines.push_back(
        fmt::format("{} are the same as an earlier one", of_documents(inspection.duplicates)));
  }
  const auto of_rows = [&](int64_t count, const char* what) {
    if (count > 0) lines.push_back(fmt::format("{} of {} rows {}", count, inspection.rows, what));
  };
  of_rows(inspection.duplicate_rows, "are the same as an earlier one");
  for (std::string& line : odd_roles(roles, template_source)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace strata::data
