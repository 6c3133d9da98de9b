#include "strata/data/prepare_options.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "strata/base/error.h"
#include "strata/data/collate.h"

namespace strata::data {
namespace {

// Checks for answers that are learnt as a whole.
void check_answer_options(const PrepareOptions& options, const char* what) {
  if (options.max_length == 1) {
    throw ConfigError(
        "max_length: found 1, expected at least 2 for {} (a token of an answer and one before it), "
        "or none",
        what);
  }
  const auto refuse = [what](bool is_set, const char* setting) {
    if (!is_set) return;
    throw ConfigError("{}: found with {}, expected it only where examples are imitated; remove it",
                      setting, what);
  };
  refuse(options.packing, "packing");
  refuse(options.long_rows == "split", "long_rows split");
  refuse(!options.completion_only_loss.value_or(true), "completion_only_loss false");
  refuse(options.assistant_only_loss, "assistant_only_loss");
  refuse(options.append_concat_token, "append_concat_token");
}

void check_preference_options(const PrepareOptions& options) {
  if (options.preference->are_rewarded) {
    if (options.long_rows == "drop") return;
    throw ConfigError(
        "long_rows: found {} with documents that get a reward, expected drop: a part of one would "
        "get another reward",
        options.long_rows);
  }
  const std::string& mode = options.preference->truncation_mode;
  if (mode != "keep_start" && mode != "keep_end") {
    throw ConfigError("truncation_mode: found \"{}\", expected keep_start or keep_end", mode);
  }
  check_answer_options(options, "preferences");
}

}  // namespace

void check_prepare_options(const PrepareOptions& options) {
  if (options.max_length < 0 || options.max_length > kMaxRowTokens) {
    throw ConfigError("max_length: found {}, expected an integer in [1, {}], or none",
                      options.max_length, kMaxRowTokens);
  }
  if (options.packing && options.max_length == 0) {
    throw ConfigError("max_length: found none, expected a length to pack to; set it");
  }
  constexpr std::string_view kPolicies[] = {"truncate", "drop", "split"};
  if (std::ranges::find(kPolicies, options.long_rows) == std::end(kPolicies)) {
    throw ConfigError("long_rows: found \"{}\", expected truncate, drop or split",
                      options.long_rows);
  }
  constexpr std::string_view kStrategies[] = {"bfd", "bfd_split", "wrapped"};
  if (std::ranges::find(kStrategies, options.packing_strategy) == std::end(kStrategies)) {
    throw ConfigError(
        "packing_strategy: found \"{}\", expected \"bfd\", \"bfd_split\" or \"wrapped\"",
        options.packing_strategy);
  }
  if (options.threads < 1) {
    throw ConfigError("threads: found {}, expected at least 1", options.threads);
  }
  if (options.preference) check_preference_options(options);
  if (options.labelled && (options.packing || options.long_rows == "split")) {
    throw ConfigError("{}: found with labelled texts, expected texts as wholes; remove it",
                      options.packing ? "packing" : "long_rows split");
  }
  if (options.rated) {
    check_answer_options(options, "rated answers");
    if (options.rated->mismatched_rows < 0) {
      throw ConfigError("mismatched_rows: found {}, expected 0 or more",
                        options.rated->mismatched_rows);
    }
  }
}

}  // namespace strata::data
