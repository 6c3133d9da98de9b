// Every key of a DeepSpeed ds_config: its type and what becomes of it here. The single source of
// the checks, the suggestions and the documentation of that file. Source: DeepSpeed 0.19.8. Never:
// reads files (file.h), decides values (deepspeed.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"

namespace strata::config {

enum class DsType : uint8_t { kBoolean, kInteger, kNumber, kText, kList, kBlock, kAny };

enum class DsUse : uint8_t {
  kSetting,   // becomes the setting `text`
  kCode,      // read by deepspeed.cpp itself
  kNoEffect,  // any value is accepted; `text` says why nothing depends on it
  kOnly,      // only the values in `accepted`; `text` says what to do instead
  kRemoved,   // DeepSpeed itself refuses it; `text` says since when
};

struct DsKey {
  std::string_view path = {};  // "zero_optimization.stage"
  DsType type = DsType::kAny;
  DsUse use = DsUse::kCode;
  std::string_view text = {};
  std::vector<std::string_view> accepted = {};  // of kOnly, as JSON: "false", "null", "1.0"
  std::vector<std::string_view> aliases = {};   // last parts of the path: "prefetch_bucket_size"
  // "auto" stands for this setting of the run; empty: "auto" is not allowed.
  std::string_view automatic = {};
  double min = -1e300;
};

std::span<const DsKey> deepspeed_keys();

// By path, aliases and older spellings ("bfloat16.enabled") included. Null when unknown.
const DsKey* find_deepspeed_key(const std::string& path);

// Whether the path is a block: another key begins with it and a dot.
bool is_deepspeed_block(const std::string& path);

// What to do about an unknown key: the closest name in its block, the block where the name belongs,
// or a hint for a known mistake.
std::string deepspeed_hint(const std::string& path);

// "found "5", expected ...": nothing when the value has the key's type.
std::optional<std::string> deepspeed_type_error(const DsKey& key, const Json& value);

}  // namespace strata::config
