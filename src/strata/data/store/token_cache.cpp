#include "strata/data/store/token_cache.h"

#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <span>
#include <system_error>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/file_lock.h"
#include "strata/base/owner_file.h"
#include "strata/base/xxh3.h"
#include "strata/data/store/private_folder.h"
#include "strata/text/templates/template_marks.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// A hash of fields: each is hashed with its length, so that neighbours cannot run together.
class KeyHash {
 public:
  void add(std::string_view bytes) {
    const uint64_t size = bytes.size();
    hash_.update(std::as_bytes(std::span(&size, 1)));
    hash_.update(bytes);
  }
  std::string text() const { return hash_.text_128(); }

 private:
  Xxh3 hash_;
};

// The linker's id of this program: another build may tokenize differently.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const char* end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
            const char* name = at + sizeof *note;
            const char* content = name + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID) {
              static_cast<std::string*>(out)->assign(content, note->n_descsz);
            }
            at = content + (note->n_descsz + 3) / 4 * 4;
          }
        }
        return 1;  // the first object is the program itself
      },
      &id);
  if (!id.empty()) return id;
  std::error_code error;
  const auto time = fs::last_write_time("/proc/self/exe", error).time_since_epoch().count();
  return fmt::format("{} {}", fs::file_size("/proc/self/exe", error), time);
}

constexpr uint64_t kCheckedBytes = uint64_t{1} << 28;  // in less than a second
constexpr std::chrono::hours kKeep{24 * 30};
constexpr std::chrono::hours kKeepUnfinished{24};  // since the last byte was written to it

void remove_old(const fs::path& folder, std::chrono::hours keep) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto time = it->last_write_time(error);
    const bool is_unfinished = it->path().filename().string().find(".tmp-") != std::string::npos;
    if (!error && now - time > (is_unfinished ? kKeepUnfinished : keep))
      fs::remove(it->path(), error);
    error.clear();
  }
}

// Who waits for a process that gives no sign of life waits on with others of his kind: of them one
// makes the set, too. More than so many holders in a row that all fall silent have another cause.
constexpr int kLocks = 3;

fs::path lock_path(const fs::path& folder, const std::string& key, int number) {
  return folder / (number == 0 ? key + ".lock" : fmt::format("{}.{}.lock", key, number + 1));
}

// What a process of this machine writes to that holds that lock. Of others nobody knows: some file
// systems lock a file on each machine alone.
std::string unfinished_prefix(const fs::path& path, int lock) {
  const std::string name = path.filename().string();
  return fmt::format("{}.tmp-{}-", lock == 0 ? name : fmt::format("{}.{}", name, lock + 1),
                     host_name());
}

// Of a start that was interrupted. Requires: that lock of the key, so that nobody writes to them.
void remove_unfinished(const fs::path& path, int lock) {
  std::error_code error;
  const std::string start = unfinished_prefix(path, lock);
  for (fs::directory_iterator it(path.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(start)) fs::remove(it->path(), error);
    error.clear();
  }
}

// Makes the set under its name, whole or not at all. Returns why the file could not be written;
// empty: it was.
std::string keep_tokens(const fs::path& path, int lock,
                        const std::function<DatasetStats(TokenWriter&)>& make) {
  const fs::path temporary =
      path.parent_path() / fmt::format("{}{}", unfinished_prefix(path, lock), ::getpid());
  std::optional<TokenWriter> writer;
  std::error_code ignored;
  try {
    writer.emplace(temporary);
    writer->finish(make(*writer), /*syncs=*/true);
    fs::rename(temporary, path);
    return "";
  } catch (const fs::filesystem_error& error) {
    fs::remove(temporary, ignored);
    return fmt::format("{}: {}", path.string(), error.code().message());
  } catch (const IoError& error) {
    fs::remove(temporary, ignored);
    if (!writer || writer->has_failed()) return error.what();
    throw;
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
}

// Nothing where there is no such set; a broken one is removed.
std::optional<TokenStore> find(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {
    TokenStore store = TokenStore::map(path);
    // Rows of larger files are checked as they are read, and end the run where they are damaged.
    if (store.file_bytes() <= kCheckedBytes) store.check_rows();
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // used today
    return store;
  } catch (const FormatError&) {
    fs::remove(path, error);
  } catch (const IoError&) {  // removed meanwhile
  }
  return std::nullopt;
}

// The rows: their bytes, and which of them are taken.
void add_rows(KeyHash& hash, const TokenSources& sources, const HashMemory& memory) {
  const DataRequest& request = sources.request;
  for (const std::vector<fs::path>& files :
       sources.files.empty() ? find_data_files(request) : sources.files) {
    hash.add(fmt::format("{}", files.size()));
    const std::vector<std::string> contents = content_hashes(files, memory);
    for (size_t i = 0; i < files.size(); ++i) {
      hash.add(files[i].filename().string());  // its extension is its format
      hash.add(contents[i]);
    }
  }
  hash.add(request.split);
  hash.add(fmt::format("{} {} {}", fmt::join(request.weights, ","),
                       request.weights.empty() ? 0 : request.seed, request.load.skip_bad_rows));
  for (const auto& [wanted, name] : request.load.columns) hash.add(wanted), hash.add(name);
  if (!request.load.reads_card_classes) return;
  for (const ClassNames& card : find_card_classes(request)) {
    hash.add(fmt::format("{}", card.size()));
    for (const auto& [column, names] : card) {
      hash.add(column);
      hash.add(fmt::format("{}", names.size()));
      for (const std::string& name : names) hash.add(name);
    }
  }
}

void add_tokenizer(KeyHash& hash, const text::Tokenizer& tokenizer, const HashMemory& memory) {
  for (const fs::path& file : tokenizer.files()) {
    hash.add(file.filename().string());
    hash.add(content_hash(file, memory));
  }
  hash.add(tokenizer.pipeline());
  const auto& specials = tokenizer.specials();
  for (const auto* token : {&specials.bos, &specials.eos, &specials.unk, &specials.pad,
                            &specials.sep, &specials.cls, &specials.mask}) {
    hash.add(token->value_or("(none)"));
  }
  for (const auto& [token, id] : tokenizer.tokens_since_load()) {
    hash.add(fmt::format("{} {} {} {} {} {} {}", id, token.content, token.single_word, token.lstrip,
                         token.rstrip, token.normalized, token.special));
  }
}

void add_templates(KeyHash& hash, const TokenSources& sources) {
  hash.add(sources.template_source);
  hash.add(sources.tool_template);
  // Yesterday's rows would say yesterday's date.
  for (const std::string& source : {sources.template_source, sources.tool_template}) {
    hash.add(text::dates_of(source, sources.time));
  }
}

// Adds the options that change the result.
void add_options(KeyHash& hash, const PrepareOptions& o) {
  const auto choice = [](const std::optional<bool>& value) { return value ? *value + 1 : 0; };
  hash.add(o.dataset_text_field);
  hash.add(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}", o.max_length, o.packing,
                       o.packing_strategy, o.long_rows, o.skip_bad_rows,
                       choice(o.add_special_tokens), o.append_concat_token,
                       choice(o.completion_only_loss), o.assistant_only_loss, o.shuffle,
                       o.shuffle ? o.seed : 0, o.vocab_size, o.separate_documents, o.max_rows));
  if (o.pairs) {
    for (const std::string& text :
         {o.pairs->text_column, o.pairs->summary_column, o.pairs->source_lang, o.pairs->target_lang,
          o.pairs->lang, o.pairs->source_prefix}) {
      hash.add(text);
    }
    hash.add(fmt::format("{} {}", o.pairs->max_source_length, o.pairs->max_target_length));
  }
  if (o.preference) {
    hash.add("preference");
    hash.add(o.preference->truncation_mode);
    if (o.preference->are_rewarded) hash.add("rewarded");
    if (o.preference->learns_prompt) hash.add("with the prompt");
  }
  if (o.rated) hash.add(fmt::format("rated {}", o.rated->mismatched_rows));
  if (o.labelled) {
    hash.add(fmt::format("labelled {} {} {} {}", o.labelled->text_columns.size(),
                         o.labelled->pair_columns.size(), choice(o.labelled->are_numbers),
                         o.labelled->hides_labels));
    for (const std::string& column : o.labelled->text_columns) hash.add(column);
    for (const std::string& column : o.labelled->pair_columns) hash.add(column);
    hash.add(o.labelled->delimiter);
    hash.add(o.labelled->label_column);
  }
}

}  // namespace

std::string token_cache_key(const TokenSources& sources, const HashMemory& memory) {
  KeyHash hash;
  hash.add(build_id());
  add_rows(hash, sources, memory);
  add_tokenizer(hash, sources.tokenizer, memory);
  add_templates(hash, sources);
  add_options(hash, sources.options);
  return hash.text();
}

void SharedProgress::tell(int64_t rows, double part) {
  if (show_) show_(rows, part);
  const auto now = std::chrono::steady_clock::now();
  if (signs_ == nullptr || now - told_at_ < std::chrono::milliseconds(100)) return;
  told_at_ = now;
  signs_->tell(rows, part);
}

void SharedProgress::show_note(const std::string& text) const {
  const HolderNote note = HolderNote::read(text);
  if (show_ && note.rows > 0) show_(note.rows, note.part);
}

namespace {

// While it lives, those that wait for the lock are told how far the set is.
class TellingOthers {
 public:
  TellingOthers(SharedProgress* progress, const FileLock& lock)
      : progress_(progress), signs_(lock) {
    if (progress_ != nullptr) progress_->set_signs(&signs_);
  }
  ~TellingOthers() {
    if (progress_ != nullptr) progress_->set_signs(nullptr);
  }
  TellingOthers(const TellingOthers&) = delete;
  TellingOthers& operator=(const TellingOthers&) = delete;

 private:
  SharedProgress* progress_;
  HolderSigns signs_;
};

struct TakenLock {
  FileLock lock;
  int number;
};

// Nothing where all holders have fallen silent. Errors: those of FileLock.
std::optional<TakenLock> take_lock(const fs::path& folder, const std::string& key,
                                   SharedProgress* progress, const HolderPatience& patience) {
  for (int number = 0; number < kLocks; ++number) {
    HolderWatch watch((folder / (key + ".tokens")).string(),
                      progress != nullptr ? progress->say() : HolderWatch::Say(), patience);
    auto last = std::chrono::steady_clock::now();
    auto lock = FileLock::wait_for(lock_path(folder, key, number), [&](const std::string& note) {
      if (progress != nullptr) progress->show_note(note);
      const auto before = std::exchange(last, std::chrono::steady_clock::now());
      return watch.look(note, std::chrono::duration<double>(last - before).count());
    });
    if (lock) return TakenLock{std::move(*lock), number};
  }
  return std::nullopt;
}

}  // namespace

namespace {

// A folder where the set of a key may be kept.
class Place {
 public:
  // What is in a scratch folder goes with those who use it.
  Place(fs::path folder, std::string key, bool is_scratch)
      : folder_(std::move(folder)),
        key_(std::move(key)),
        path_(folder_ / (key_ + ".tokens")),
        is_scratch_(is_scratch) {}

  bool is_scratch() const { return is_scratch_; }
  std::optional<TokenStore> find() const {
    if (is_scratch_ && !is_private(folder_)) return std::nullopt;
    auto store = data::find(path_);
    if (store && is_scratch_) store->remove_at_end();
    return store;
  }
  // Waits for who makes the set there. Returns why it cannot be made there; empty: it can.
  std::string take_lock(SharedProgress* progress, const HolderPatience& patience) {
    if (std::string why = make_folder(); !why.empty()) return why;
    try {
      taken_ = data::take_lock(folder_, key_, progress, patience);
    } catch (const IoError& unlocked) {
      return unlocked.what();
    }
    if (taken_) return "";
    return fmt::format("{}: {} processes hold its locks in turn and give no sign of life",
                       path_.string(), kLocks);
  }
  const FileLock& lock() const { return taken_->lock; }
  // Requires: the lock. Returns why the set could not be written; empty: it was.
  std::string make(const std::function<DatasetStats(TokenWriter&)>& make) const {
    remove_unfinished(path_, taken_->number);
    std::string why = keep_tokens(path_, taken_->number, make);
    if (why.empty()) remove_old(folder_, is_scratch_ ? kKeepUnfinished : kKeep);
    return why;
  }

 private:
  std::string make_folder() const {
    if (is_scratch_) return make_private(folder_);
    std::error_code error;
    fs::create_directories(folder_, error);
    return error ? fmt::format("{}: {}", folder_.string(), error.message()) : "";
  }

  fs::path folder_;
  std::string key_;
  fs::path path_;
  bool is_scratch_;
  std::optional<TakenLock> taken_;
};

// `note`: why this process could not keep the set.
std::optional<CachedTokens> find_anywhere(const std::vector<Place>& places, std::string note) {
  for (const Place& place : places) {
    auto store = place.find();
    if (!store) continue;
    if (place.is_scratch() && note.empty()) note = "another process could not write them there";
    return CachedTokens{.store = std::move(*store), .was_cached = true, .note = std::move(note)};
  }
  return std::nullopt;
}

}  // namespace

CachedTokens load_or_make_tokens(const fs::path& folder, const std::string& key,
                                 const std::function<DatasetStats(TokenWriter&)>& make,
                                 SharedProgress* progress, const HolderPatience& patience,
                                 const fs::path& scratch) {
  std::vector<Place> places;
  places.emplace_back(folder, key, /*is_scratch=*/false);
  if (!scratch.empty()) places.emplace_back(scratch, key, /*is_scratch=*/true);
  std::string note;
  std::optional<TellingOthers> telling;  // until the set is there, be it in the second place
  for (Place& place : places) {
    if (auto found = find_anywhere(places, note)) return std::move(*found);
    std::string why = place.take_lock(progress, patience);
    if (why.empty()) {
      if (!telling) telling.emplace(progress, place.lock());
      if (auto found = find_anywhere(places, note)) return std::move(*found);
      why = place.make(make);
      // It may be there although this process could not write it: another machine's.
      if (auto store = place.find()) {
        return {.store = std::move(*store), .was_cached = !why.empty(), .note = note};
      }
    }
    if (note.empty()) note = std::move(why);
  }
  // What has no room in one of them has none in a folder beside it.
  std::error_code error;
  fs::path own = scratch_path();
  if (const fs::path other = fs::temp_directory_path(error); telling && !error) own = other;
  return {.store = TokenStore::scratch(make, own), .was_cached = false, .note = note};
}

}  // namespace strata::data
