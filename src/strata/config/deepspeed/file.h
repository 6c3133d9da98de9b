// A ds_config as a list of keys with their places. Owns: JSON syntax, duplicates, unknown keys and
// types at every depth. Never: meanings (deepspeed.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/deepspeed/keys.h"

namespace strata::config {

struct DsEntry {
  const DsKey* key = nullptr;
  std::string path;   // the table's spelling
  Json value;         // never "auto" where `is_auto`
  std::string place;  // "ds_config.json:12"
  bool is_auto = false;

  // "ds_config.json:12 (zero_optimization.stage)"
  std::string source() const { return place + " (" + path + ")"; }
};

struct DsFile {
  std::string name;  // the file, or where the inline text stood
  std::vector<DsEntry> entries;

  // Null when absent or null.
  const DsEntry* find(std::string_view path) const;
  // Whether any key of the block is there.
  bool has_block(std::string_view block) const;
  // Whether the block says "enabled": false.
  bool is_disabled(std::string_view block) const;
};

// `text`: a path, or the document itself (it begins with "{"), as `--deepspeed` takes both.
// `source`: names the setting in messages. Throws ConfigError with file, line and key.
DsFile read_deepspeed(const std::string& text, const std::string& source);

// A value as settings write it: 5e8 as 500000000, texts without quotes.
std::string ds_text(const Json& value);

// Told by keys that only a ds_config has.
bool is_deepspeed_json(const Json& file);

}  // namespace strata::config
