#include "strata/data/files/folder_patterns.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_set>

#include "strata/base/error.h"
#include "strata/data/files/shard_names.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// Whether the class at pattern[0] == '[' takes `c`; `size`: its length with both brackets, 0 if it
// is not closed.
bool class_takes(std::string_view pattern, char c, size_t& size) {
  const size_t end = pattern.find(']', 2);
  size = end == std::string_view::npos ? 0 : end + 1;
  if (size == 0) return false;
  std::string_view items = pattern.substr(1, end - 1);
  const bool is_negated = items.starts_with('!') || items.starts_with('^');
  if (is_negated) items.remove_prefix(1);
  bool found = false;
  for (size_t i = 0; i < items.size(); ++i) {
    const bool is_range = i + 2 < items.size() && items[i + 1] == '-';
    found |= is_range ? items[i] <= c && c <= items[i + 2] : items[i] == c;
    if (is_range) i += 2;
  }
  return found != is_negated && c != '/';
}

bool matches(std::string_view path, std::string_view pattern) {
  while (!pattern.empty()) {
    if (pattern.starts_with("**")) {
      std::string_view rest = pattern.substr(2);
      // "**/x" also means x itself.
      if (rest.starts_with('/') && matches(path, rest.substr(1))) return true;
      for (size_t i = 0; i <= path.size(); ++i) {
        if (matches(path.substr(i), rest)) return true;
      }
      return false;
    }
    if (pattern.front() == '*') {
      for (size_t i = 0;; ++i) {
        if (matches(path.substr(i), pattern.substr(1))) return true;
        if (i >= path.size() || path[i] == '/') return false;
      }
    }
    if (path.empty()) return false;
    size_t size = 1;
    bool fits = pattern.front() == path.front();
    if (pattern.front() == '?') fits = path.front() != '/';
    if (pattern.front() == '[') {
      const bool taken = class_takes(pattern, path.front(), size);
      if (size > 0) fits = taken;
      size = std::max<size_t>(size, 1);
    }
    if (!fits) return false;
    path.remove_prefix(1);
    pattern.remove_prefix(size);
  }
  return path.empty();
}

struct SplitWords {
  const char* split;
  std::vector<std::string_view> words;
};

const std::vector<SplitWords>& split_words() {
  static const std::vector<SplitWords> words = {
      {"train", {"train", "training"}},
      {"validation", {"validation", "valid", "dev", "val"}},
      {"test", {"test", "testing", "eval", "evaluation"}}};
  return words;
}

bool is_border(char c) { return std::string_view("-._ 0123456789").find(c) != std::string::npos; }

// What stands around a word: nothing, or a border and anything.
struct Around {
  bool begins;  // nothing before it
  bool ends;    // nothing after it
};
// In the order in which `datasets` looks for them. A folder may end with a word, a file may not.
constexpr Around kOfFolders[] = {{true, true}, {true, false}, {false, true}, {false, false}};
constexpr Around kOfFiles[] = {{true, false}, {false, false}};

bool has_word(std::string_view name, std::string_view word, Around around) {
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = around.begins ? at == 0 : at > 0 && is_border(name[at - 1]);
    const bool ends = around.ends ? end == name.size() : end < name.size() && is_border(name[end]);
    if (begins && ends) return true;
  }
  return false;
}

bool has_word_in_folders(std::string_view path, std::string_view word, Around around) {
  size_t begin = 0;
  for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', begin)) {
    if (has_word(path.substr(begin, end - begin), word, around)) return true;
    begin = end + 1;
  }
  return false;
}

using Splits = std::map<std::string, std::vector<std::string>>;

// data/NAME-00000-of-00002.*: where there are such files, they are the whole set.
Splits splits_by_shards(const std::vector<std::string>& files) {
  Splits splits;
  for (const std::string& file : files) {
    if (!file.starts_with("data/") || file.find('/', 5) != std::string::npos) continue;
    if (const auto shard = parse_shard(stem_of(file))) splits[shard->split].push_back(file);
  }
  return splits;
}

// The files of one split, those of each rule sorted, each file once.
std::vector<std::string> files_of(const std::vector<std::string_view>& words, bool by_folder,
                                  const std::vector<std::string>& files) {
  std::vector<std::string> found;
  std::unordered_set<std::string_view> known;
  const std::span<const Around> rules = by_folder ? std::span<const Around>(kOfFolders) : kOfFiles;
  for (const std::string_view word : words) {
    for (const Around around : rules) {
      for (const std::string& file : files) {
        const std::string_view path = file;
        const bool fits = by_folder ? has_word_in_folders(path, word, around)
                                    : has_word(path.substr(path.rfind('/') + 1), word, around);
        if (fits && known.insert(file).second) found.push_back(file);
      }
    }
  }
  return found;
}

}  // namespace

bool matches_pattern(const std::string& path, const std::string& pattern) {
  return matches(path, pattern.starts_with("./") ? std::string_view(pattern).substr(2)
                                                 : std::string_view(pattern));
}

bool is_hidden(const fs::path& relative) {
  return std::ranges::any_of(relative, [](const fs::path& part) {
    return part.string().starts_with('.') || part.string().starts_with("__");
  });
}

std::vector<std::string> list_files(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const bool left_out = is_hidden(it->path().filename());
    if (left_out && it->is_directory()) it.disable_recursion_pending();
    if (left_out || !it->is_regular_file()) continue;
    files.push_back(it->path().lexically_relative(folder).string());
  }
  if (error) {
    throw IoError("{}: found {}, expected a readable folder", folder.string(), error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::map<std::string, std::vector<std::string>> split_by_words(
    const std::vector<std::string>& files) {
  Splits splits = splits_by_shards(files);
  if (!splits.empty()) return splits;
  for (const bool by_folder : {true, false}) {
    for (const auto& [split, words] : split_words()) {
      std::vector<std::string> found = files_of(words, by_folder, files);
      if (!found.empty()) splits[split] = std::move(found);
    }
    if (!splits.empty()) return splits;
  }
  if (!files.empty()) splits["train"] = files;
  return splits;
}

}  // namespace strata::data
