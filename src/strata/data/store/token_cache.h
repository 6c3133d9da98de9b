// Tokenized sets on disk, found again by everything that they depend on. Owns: the key, the lock
// that lets one process prepare a set while others wait, and the removal of old sets. Never
// tokenizes.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/data/files/content_hash.h"
#include "strata/data/files/data_sets.h"
#include "strata/data/prepare_options.h"
#include "strata/data/store/lock_holder.h"
#include "strata/data/store/token_store.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

// What a prepared set depends on.
struct TokenSources {
  const DataRequest& request;
  const PrepareOptions& options;
  const text::Tokenizer& tokenizer;
  const std::string& template_source;
  std::time_t time = std::time(nullptr);  // of a template that writes the date
  std::string tool_template = {};         // of conversations with tools; empty: the same
  // What find_data_files gives for the request; empty: it is asked.
  std::vector<std::vector<std::filesystem::path>> files = {};
};

// 32 hexadecimal digits: the hash of the files' bytes in order, the names of classes in cards
// where they count, the split specification and
// weights, the tokenizer's files and named tokens, the template and the dates that it writes now,
// the options that change the result, and the build of this program. Reads every file of the
// request once, large ones that `memory` knows not even that. Errors: as find_data_files.
std::string token_cache_key(const TokenSources& sources, const HashMemory& memory = {});

struct CachedTokens {
  TokenStore store;
  bool was_cached = false;
  std::string note;  // why this process could not keep the result; empty: it could
};

// How far a set is, as the process that makes it tells those that wait for it.
class SharedProgress {
 public:
  // With the rows done and how much of all has been read, from 0 to 1.
  using Show = std::function<void(int64_t rows, double part)>;

  // `say`: told, in a line for people, of a maker that gives no sign of life; may be empty.
  explicit SharedProgress(Show show, HolderWatch::Say say = {})
      : show_(std::move(show)), say_(std::move(say)) {}

  // Of the set that this process makes: shown here, and where others wait.
  void tell(int64_t rows, double part);
  // What the maker told.
  void show_note(const std::string& note) const;
  const HolderWatch::Say& say() const { return say_; }
  // Null: nobody waits.
  void set_signs(HolderSigns* signs) { signs_ = signs; }

 private:
  Show show_;
  HolderWatch::Say say_;
  HolderSigns* signs_ = nullptr;
  std::chrono::steady_clock::time_point told_at_;
};

// The set of that key in `folder`, or what `make` writes, which is then kept; `make` returns the
// statistics. One process at a time makes a set; others wait for it, and make it themselves if that
// one fails, or gives no sign of life for as long as `patience` says. A folder that cannot be
// written, or a full disk, costs only the keeping: the set is then made in `scratch`, a folder of
// this user alone (made only then), where the others of the machine find it and which it leaves
// with who made it, or, where that is empty or takes no files either, by each process in a scratch
// file. Sets that nobody used for 30 days are removed.
CachedTokens load_or_make_tokens(const std::filesystem::path& folder, const std::string& key,
                                 const std::function<DatasetStats(TokenWriter&)>& make,
                                 SharedProgress* progress = nullptr,
                                 const HolderPatience& patience = {},
                                 const std::filesystem::path& scratch = {});

}  // namespace strata::data
