// Which pipeline a tokenizer class means. transformers 5 does not always use tokenizer.json as
// written: some classes keep its vocabulary and merges and put their own normalizer, pre-tokenizer,
// decoder and post-processor in place. This file writes those; it chooses and builds nothing.
#pragma once

#include <string>

#include "strata/base/json.h"

namespace strata::text {

struct ClassRules {
  std::string name;                        // empty: the file as it is written
  Json default_specials = Json::object();  // named tokens that the class has without being told
  // The post-processor of the class, with the names of special tokens ("cls_token") where ids
  // belong; null: that of the file.
  Json post_processor = {};
};

// Rewrites `document` (tokenizer.json without vocabulary) to what the class builds.
// `tokenizer_config` may be null. FormatError for a class whose own pipeline is not supported.
ClassRules apply_class_rules(const std::string& tokenizer_class, const Json& tokenizer_config,
                             Json& document, const std::string& subject);

}  // namespace strata::text
