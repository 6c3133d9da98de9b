// Oracle: round trip; a changed input gives another key; two processes at once make a set once.
#include "strata/data/store/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include "byte_tokenizer.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/owner_file.h"
#include "strata/base/resident_memory.h"
#include "strata/data/store/private_folder.h"

namespace strata::data {
namespace {

using strata::testing::TemporaryFolder;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Dataset make_dataset() {
  Dataset dataset;
  dataset.rows = {{{1, 2, 3}, {-100, 2, 3}, {3}}, {{}, {}, {}}, {{4, 5, 6}, {4, 5, -100}, {1, 2}}};
  dataset.num_sources = 7;
  dataset.num_dropped = 1;
  dataset.num_long = 2;
  dataset.bad_rows = {3, "f.jsonl:1: \"found\" \xc3\xa9"};
  dataset.num_tokens = 6;
  dataset.num_targets = 3;
  dataset.num_split_prompts = 4;
  dataset.num_cut_sources = 7;
  dataset.num_cut_targets = 5;
  dataset.roles = {{"user", 3}, {"\"odd\"", 1}};
  dataset.num_text_fields = 6;
  dataset.unused_columns = {{"id", 5}};
  dataset.files = {"f.jsonl", "g.jsonl"};
  dataset.longest_rows = {{9, "f.jsonl:2"}, {3, "f.jsonl:7"}};
  dataset.hidden_texts = {{"texts of role \"odd\"", {2, {"f.jsonl:1", "f.jsonl:4"}}}};
  dataset.printed_parts = {{"contents of role \"user\"", {1, {"f.jsonl:6"}}}};
  dataset.missing_answers = {{"without an answer", {1, {"f.jsonl:8"}}}};
  return dataset;
}

DatasetStats write(const Dataset& dataset, TokenWriter& writer) {
  for (const Example& row : dataset.rows) writer.add(row);
  return dataset;
}

DatasetStats write_dataset(TokenWriter& writer) { return write(make_dataset(), writer); }

void write_tokens(const Dataset& dataset, const std::filesystem::path& path) {
  TokenWriter writer(path);
  writer.finish(write(dataset, writer), /*syncs=*/false);
}

void expect_equal(const TokenStore& store, const Dataset& expected) {
  ASSERT_EQ(store.size(), expected.rows.size());
  for (size_t i = 0; i < store.size(); ++i) {
    const auto vector_of = [](std::span<const int32_t> s) {
      return std::vector(s.begin(), s.end());
    };
    EXPECT_THAT(vector_of(store[i].ids), ElementsAreArray(expected.rows[i].ids));
    EXPECT_THAT(vector_of(store[i].labels), ElementsAreArray(expected.rows[i].labels));
    EXPECT_THAT(vector_of(store[i].lengths), ElementsAreArray(expected.rows[i].lengths));
  }
  EXPECT_EQ(store.stats().num_sources, expected.num_sources);
  EXPECT_EQ(store.stats().num_dropped, expected.num_dropped);
  EXPECT_EQ(store.stats().num_long, expected.num_long);
  EXPECT_EQ(store.stats().bad_rows.count, expected.bad_rows.count);
  EXPECT_EQ(store.stats().bad_rows.first, expected.bad_rows.first);
  EXPECT_EQ(store.stats().num_tokens, expected.num_tokens);
  EXPECT_EQ(store.stats().num_targets, expected.num_targets);
  EXPECT_EQ(store.stats().num_split_prompts, expected.num_split_prompts);
  EXPECT_EQ(store.stats().num_cut_sources, expected.num_cut_sources);
  EXPECT_EQ(store.stats().num_cut_targets, expected.num_cut_targets);
  EXPECT_EQ(store.stats().roles, expected.roles);
  EXPECT_EQ(store.stats().files, expected.files);
  EXPECT_EQ(store.stats().num_text_fields, expected.num_text_fields);
  EXPECT_EQ(store.stats().unused_columns, expected.unused_columns);
  EXPECT_EQ(store.stats().longest_rows, expected.longest_rows);
  EXPECT_EQ(store.stats().hidden_texts, expected.hidden_texts);
  EXPECT_EQ(store.stats().printed_parts, expected.printed_parts);
  EXPECT_EQ(store.stats().missing_answers, expected.missing_answers);
}

TEST(TokenStore, ComesBackFromItsFile) {
  const TemporaryFolder folder;
  write_tokens(make_dataset(), folder.path() / "a.tokens");
  expect_equal(TokenStore::map(folder.path() / "a.tokens"), make_dataset());
  expect_equal(TokenStore(make_dataset()), make_dataset());
  write_tokens(Dataset{}, folder.path() / "empty.tokens");
  EXPECT_EQ(TokenStore::map(folder.path() / "empty.tokens").size(), 0u);
  expect_equal(TokenStore::scratch(write_dataset), make_dataset());
}

TEST(TokenStore, ContentIsThatOfTheRowsWhereverTheyAreKept) {
  const TemporaryFolder folder;
  const Dataset dataset = make_dataset();
  const std::string content = TokenStore(dataset).content();
  write_tokens(dataset, folder.path() / "a.tokens");
  EXPECT_EQ(TokenStore::map(folder.path() / "a.tokens").content(), content);
  Dataset turned = dataset, masked = dataset, cut = dataset, renamed = dataset;
  std::swap(turned.rows[0], turned.rows[2]);
  masked.rows[0].labels[1] = -100;
  cut.rows[2].lengths = {3};
  renamed.files = {"h.jsonl"};
  for (const Dataset& other : {turned, masked, cut}) {
    EXPECT_NE(TokenStore(other).content(), content);
  }
  EXPECT_EQ(TokenStore(renamed).content(), content);
}

TEST(TokenStore, FollowsFilesToOtherNames) {
  const TemporaryFolder folder;
  write_tokens(make_dataset(), folder.path() / "a.tokens");
  TokenStore store = TokenStore::map(folder.path() / "a.tokens");
  store.rename_files({"one name"});
  EXPECT_EQ(store.stats().longest_rows, make_dataset().longest_rows);
  store.rename_files({"new/f.jsonl", "g.jsonl"});
  EXPECT_THAT(store.stats().bad_rows.first, ::testing::StartsWith("new/f.jsonl:1: \"found\""));
  EXPECT_EQ(store.stats().longest_rows,
            (std::vector<LongRow>{{9, "new/f.jsonl:2"}, {3, "new/f.jsonl:7"}}));
  EXPECT_EQ(store.stats().hidden_texts.begin()->second.first,
            (std::vector<std::string>{"new/f.jsonl:1", "new/f.jsonl:4"}));
  EXPECT_EQ(store.stats().printed_parts.begin()->second.first,
            std::vector<std::string>{"new/f.jsonl:6"});
  EXPECT_EQ(store.stats().missing_answers.begin()->second.first,
            std::vector<std::string>{"new/f.jsonl:8"});
}

// More rows than wait in memory for the end of the file.
TEST(TokenStore, HoldsManyRows) {
  constexpr int32_t kRows = 300'000;
  const TokenStore store = TokenStore::scratch([](TokenWriter& writer) {
    for (int32_t i = 0; i < kRows; ++i) {
      const std::vector<int32_t> ids(static_cast<size_t>(i % 3), i), lengths(1, i % 3);
      writer.add({ids, ids, lengths});
    }
    DatasetStats stats;
    stats.num_sources = kRows;
    return stats;
  });
  ASSERT_EQ(store.size(), static_cast<size_t>(kRows));
  EXPECT_EQ(store.stats().num_sources, kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    const ExampleView row = store[static_cast<size_t>(i)];
    const std::vector<int32_t> ids(static_cast<size_t>(i % 3), i);
    ASSERT_TRUE(std::ranges::equal(row.ids, ids) && std::ranges::equal(row.labels, ids)) << i;
    ASSERT_TRUE(row.lengths.size() == 1 && row.lengths[0] == i % 3) << i;
  }
}

TEST(TokenStore, RefusesEveryDamagedFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.tokens";
  write_tokens(make_dataset(), path);
  const std::string whole = read_file(path);
  for (size_t size = 0; size < whole.size(); size += 3) {
    EXPECT_THROW(TokenStore::map(folder.put("cut.tokens", whole.substr(0, size))), FormatError);
  }
  // Any other byte, wherever it stands: an error, of the file or of the row that it is in.
  const auto read_all = [](const std::filesystem::path& file) {
    TokenStore::map(file).check_rows();
  };
  EXPECT_NO_THROW(read_all(path));
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ (1 << (at % 8)));
    EXPECT_THROW(read_all(folder.put("broken.tokens", broken)), FormatError) << at;
  }
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string broken = whole;
    for (int i = 0; i < 3; ++i) broken[random() % broken.size()] = static_cast<char>(random());
    if (broken == whole) continue;
    EXPECT_THROW(read_all(folder.put("broken.tokens", broken)), FormatError);
  }
}

TEST(TokenStore, ADamagedRowIsAnErrorWhereItIsRead) {
  const TemporaryFolder folder;
  write_tokens(make_dataset(), folder.path() / "a.tokens");
  std::string bytes = read_file(folder.path() / "a.tokens");
  const int32_t id = 5, other = 7;  // of the last row
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&id), sizeof id));
  bytes.replace(at, sizeof other, reinterpret_cast<const char*>(&other), sizeof other);
  const TokenStore store = TokenStore::map(folder.put("b.tokens", bytes));
  EXPECT_THAT(store[0].ids, ElementsAreArray({1, 2, 3}));
  try {
    store[2];
    FAIL() << "expected an error";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("b.tokens: found row 2 not as it was written"));
  }
}

TEST(TokenCache, MakesASetOnce) {
  const TemporaryFolder folder;
  int made = 0;
  const auto make = [&made](TokenWriter& writer) {
    ++made;
    return write_dataset(writer);
  };
  EXPECT_FALSE(load_or_make_tokens(folder.path() / "new", "k", make).was_cached);
  const CachedTokens second = load_or_make_tokens(folder.path() / "new", "k", make);
  EXPECT_TRUE(second.was_cached);
  EXPECT_EQ(made, 1);
  expect_equal(second.store, make_dataset());
  EXPECT_FALSE(load_or_make_tokens(folder.path() / "new", "other", make).was_cached);
  // A damaged file is made again.
  std::ofstream(folder.path() / "new" / "k.tokens") << "nonsense";
  EXPECT_FALSE(load_or_make_tokens(folder.path() / "new", "k", make).was_cached);
  EXPECT_EQ(made, 3);
  // So is one with a damaged row.
  std::string bytes = read_file(folder.path() / "new" / "k.tokens");
  bytes[sizeof(TokenFileHeader)] ^= 1;
  folder.put("new/k.tokens", bytes);
  const CachedTokens again = load_or_make_tokens(folder.path() / "new", "k", make);
  EXPECT_FALSE(again.was_cached);
  expect_equal(again.store, make_dataset());
  EXPECT_EQ(made, 4);
}

TEST(TokenCache, WorksWithoutAFolder) {
  const TemporaryFolder folder;
  const auto file = folder.put("file", "");
  const CachedTokens tokens = load_or_make_tokens(file / "below", "k", write_dataset);
  expect_equal(tokens.store, make_dataset());
  EXPECT_THAT(tokens.note, HasSubstr("file/below: Not a directory"));
}

TEST(TokenCache, WhatCannotBeKeptStaysAsLongAsItIsUsed) {
  const TemporaryFolder folder;
  const auto file = folder.put("file", "");
  const auto scratch = folder.path() / "scratch";
  const auto kept = scratch / "k.tokens";
  int made = 0;
  const auto load = [&] {
    return load_or_make_tokens(
        file / "below", "k", [&](TokenWriter& writer) { return ++made, write_dataset(writer); },
        nullptr, {}, scratch);
  };
  {
    const CachedTokens first = load();
    EXPECT_FALSE(first.was_cached);
    EXPECT_THAT(first.note, HasSubstr("file/below: Not a directory"));
    const CachedTokens second = load();
    EXPECT_TRUE(second.was_cached);
    EXPECT_FALSE(second.note.empty());
    EXPECT_EQ(made, 1);
    expect_equal(second.store, make_dataset());
    EXPECT_TRUE(std::filesystem::exists(kept));
  }
  EXPECT_FALSE(std::filesystem::exists(kept));
  // Nor is anything there that takes no files.
  const CachedTokens alone =
      load_or_make_tokens(file / "below", "k", write_dataset, nullptr, {}, file / "other");
  expect_equal(alone.store, make_dataset());
}

// Each start that was interrupted left what it had; of other sets somebody may be at work.
TEST(TokenCache, WhatWasInterruptedGoesWithTheNextStart) {
  const TemporaryFolder folder;
  const std::string host = host_name();
  const auto left = folder.put(fmt::format("k.tokens.tmp-{}-1", host), "half");
  const auto of_another_set = folder.put(fmt::format("kk.tokens.tmp-{}-1", host), "half");
  const auto of_another_machine = folder.put(fmt::format("k.tokens.tmp-{}x-1", host), "half");
  load_or_make_tokens(folder.path(), "k", write_dataset);
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(of_another_set));
  EXPECT_TRUE(std::filesystem::exists(of_another_machine));
}

TEST(TokenCache, AnErrorLeavesNothing) {
  const TemporaryFolder folder;
  const auto fail = [](TokenWriter& writer) -> DatasetStats {
    write_dataset(writer);
    throw FormatError("bad row");
  };
  EXPECT_THROW(load_or_make_tokens(folder.path(), "k", fail), FormatError);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().extension(), ".lock") << entry.path();
  }
  EXPECT_FALSE(load_or_make_tokens(folder.path(), "k", write_dataset).was_cached);
}

// Children end with 1 where they made the set, with 0 where another did.
void expect_one_made(const std::vector<pid_t>& children) {
  int made = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_LT(WEXITSTATUS(status), 2);
    made += WEXITSTATUS(status);
  }
  EXPECT_EQ(made, 1);
}

// Processes that start together: one makes the set, the others wait for it.
TEST(TokenCache, OneOfSeveralProcessesMakesIt) {
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const CachedTokens tokens = load_or_make_tokens(folder.path(), "k", [](TokenWriter& w) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return write_dataset(w);
      });
      _exit(tokens.store.size() != 3 ? 2 : tokens.was_cached ? 0 : 1);
    }
    children.push_back(child);
  }
  expect_one_made(children);
}

// The same where the folder takes no files: the set is made once, not by each.
TEST(TokenCache, OneOfSeveralProcessesMakesWhatCannotBeKept) {
  const TemporaryFolder folder;
  const auto file = folder.put("file", "");
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const CachedTokens tokens = load_or_make_tokens(
          file / "below", "k",
          [](TokenWriter& w) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            return write_dataset(w);
          },
          nullptr, {}, folder.path() / "scratch");
      _exit(tokens.store.size() != 3 ? 2 : tokens.was_cached ? 0 : 1);
    }
    children.push_back(child);
  }
  expect_one_made(children);
}

TEST(TokenCache, TheSharedScratchFolderIsOurs) {
  const TemporaryFolder folder;
  const char* set = ::getenv("TMPDIR");
  const std::string before = set == nullptr ? "" : set;
  ::setenv("TMPDIR", folder.path().c_str(), /*overwrite=*/1);
  const std::filesystem::path path = shared_scratch_path();
  before.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before.c_str(), /*overwrite=*/1);
  EXPECT_EQ(path.parent_path(), folder.path());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(make_private(path), "");
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
  EXPECT_EQ(make_private(path), "");
  std::filesystem::create_directory_symlink(path, folder.path() / "link");
  EXPECT_THAT(make_private(folder.path() / "link"), HasSubstr("of this user alone"));
  EXPECT_THAT(make_private(path / "no" / "folder"), HasSubstr("No such file"));
  std::filesystem::permissions(path, std::filesystem::perms::all);
  EXPECT_FALSE(is_private(path));
  EXPECT_THAT(make_private(path), HasSubstr("of this user alone"));
}

// One that is kept in its place leaves no other folder; what others may have put is not read.
TEST(TokenCache, ScratchFoldersAreMadeOnlyForWhatHasNoOtherPlace) {
  const TemporaryFolder folder;
  const auto file = folder.put("file", "");
  const auto scratch = folder.path() / "scratch";
  load_or_make_tokens(folder.path() / "kept", "k", write_dataset, nullptr, {}, scratch);
  EXPECT_FALSE(std::filesystem::exists(scratch));
  std::filesystem::create_directory(scratch);
  std::filesystem::permissions(scratch, std::filesystem::perms::all);
  std::filesystem::rename(folder.path() / "kept" / "k.tokens", scratch / "k.tokens");
  const CachedTokens made =
      load_or_make_tokens(file / "below", "k", write_dataset, nullptr, {}, scratch);
  EXPECT_FALSE(made.was_cached);
  expect_equal(made.store, make_dataset());
}

// What the process holds, as the system counts it, and what a plan then takes for the process's
// own.
TEST(TokenStore, PagesThatWereReadAreForgotten) {
  const TokenStore store = TokenStore::scratch([](TokenWriter& writer) {
    Example row{.ids = std::vector<int32_t>(4096, 7), .labels = {}, .lengths = {4000, 96}};
    row.labels = row.ids;
    for (int i = 0; i < 4000; ++i) writer.add(row);
    return DatasetStats();
  });
  constexpr int64_t kMegabyte = 1'000'000;
  ASSERT_GT(store.file_bytes(), 130u * kMegabyte);
  const int64_t before = resident_bytes();
  int64_t tokens = 0;
  for (size_t i = 0; i < store.size(); ++i) {
    tokens += store.num_tokens(i) - store.lengths(i)[0] - store.lengths(i)[1];
  }
  EXPECT_EQ(tokens, 0);
  EXPECT_LT(resident_bytes() - before, 5 * kMegabyte) << "the index alone";
  int64_t most = 0;
  for (size_t i = 0; i < store.size(); ++i) {
    tokens += store[i].ids[4095];
    if (i % 100 == 0) most = std::max(most, resident_bytes() - before);
  }
  EXPECT_EQ(tokens, 4000 * 7);
  EXPECT_LT(most, 50 * kMegabyte);
}

// Whichever rank prepares: the one that has the terminal shows how far it is.
TEST(TokenCache, WhoWaitsShowsHowFarTheOtherIs) {
  const TemporaryFolder folder;
  const auto is_there = [&](const char* name) { return std::filesystem::exists(folder / name); };
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  const pid_t child = fork();
  if (child == 0) {
    SharedProgress progress({});
    load_or_make_tokens(
        folder.path(), "k",
        [&](TokenWriter& writer) {
          progress.tell(1234567, 0.25);
          write_file_atomically(folder / "begun", "");
          for (int i = 0; i < 2000 && !is_there("seen"); ++i) nap();
          return write_dataset(writer);
        },
        &progress);
    _exit(0);
  }
  for (int i = 0; i < 2000 && !is_there("begun"); ++i) nap();
  std::vector<std::pair<int64_t, double>> shown;
  SharedProgress progress([&](int64_t rows, double part) {
    shown.emplace_back(rows, part);
    write_file_atomically(folder / "seen", "");
  });
  const CachedTokens tokens = load_or_make_tokens(folder.path(), "k", write_dataset, &progress);
  EXPECT_TRUE(tokens.was_cached);
  ASSERT_FALSE(shown.empty());
  EXPECT_THAT(shown, ::testing::Each(std::pair<int64_t, double>(1234567, 0.25)));
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  // Whoever has the lock next begins without what this one told.
  std::filesystem::remove(folder / "k.tokens");
  load_or_make_tokens(folder.path(), "k", write_dataset, &progress);
  EXPECT_THAT(read_file(folder / "k.lock"), StartsWith("0 0.0000 1 {\"owner\""));
}

// Made by a child that holds the lock and does not go on.
TEST(TokenCache, WhoIsStoppedIsNamedAndNotWaitedForWithoutEnd) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    load_or_make_tokens(folder.path(), "k", [&](TokenWriter& writer) {
      ::raise(SIGSTOP);
      return write_dataset(writer);
    });
    _exit(std::filesystem::exists(folder / "k.tokens") ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::vector<std::string> said;
  SharedProgress progress({}, [&](const std::string& line) { said.push_back(line); });
  const HolderPatience patience{.first_word_stopped = 0.2, .longest_stopped = 1};
  const CachedTokens tokens =
      load_or_make_tokens(folder.path(), "k", write_dataset, &progress, patience);
  EXPECT_FALSE(tokens.was_cached);
  EXPECT_EQ(tokens.note, "");
  expect_equal(tokens.store, make_dataset());
  ASSERT_GE(said.size(), 3u);
  EXPECT_THAT(said[0], HasSubstr(fmt::format("k.tokens: waiting for process {} on {} since", child,
                                             host_name())));
  EXPECT_THAT(said[0], HasSubstr("which a signal has stopped, to prepare these rows"));
  EXPECT_THAT(said.back(), HasSubstr("this run prepares these rows itself"));
  EXPECT_LE(said.size(), 5u) << "at growing intervals";
  // The set that is there; the other one ends well, too.
  EXPECT_TRUE(load_or_make_tokens(folder.path(), "k", write_dataset).was_cached);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(load_or_make_tokens(folder.path(), "k", write_dataset).was_cached);
}

// Those who have given up on the same one do not all prepare the set.
TEST(TokenCache, OfThoseWhoGaveUpOneMakesIt) {
  const TemporaryFolder folder;
  const FileLock silent(folder / "k.lock");
  const HolderPatience patience{.first_word = 0.2, .longest = 0.6};
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const CachedTokens tokens = load_or_make_tokens(
          folder.path(), "k",
          [](TokenWriter& w) {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            return write_dataset(w);
          },
          nullptr, patience);
      _exit(tokens.store.size() != 3 ? 2 : tokens.was_cached ? 0 : 1);
    }
    children.push_back(child);
  }
  expect_one_made(children);
}

TEST(TokenCache, TheKeyFollowsEverythingThatMatters) {
  const TemporaryFolder folder;
  const auto file = folder.put("a.jsonl", "{\"text\": \"x\"}\n").string();
  const auto tokenizer = make_byte_tokenizer(folder);
  DataRequest request{.names = file};
  PrepareOptions options;
  std::string chat_template = "t";
  std::string tool_template;
  const auto key = [&] {
    return token_cache_key({.request = request,
                            .options = options,
                            .tokenizer = *tokenizer,
                            .template_source = chat_template,
                            .tool_template = tool_template});
  };
  std::vector<std::string> keys = {key()};
  EXPECT_EQ(key(), keys[0]);
  EXPECT_EQ(keys[0].size(), 32u);
  options.threads = 7;  // changes no result
  options.subject = "other";
  EXPECT_EQ(key(), keys[0]);
  const auto expect_new = [&] {
    keys.push_back(key());
    EXPECT_EQ(std::count(keys.begin(), keys.end(), keys.back()), 1) << keys.size();
  };
  options.max_length = 10, expect_new();
  options.packing = true, expect_new();
  options.packing_strategy = "wrapped", expect_new();
  options.long_rows = "drop", expect_new();
  options.skip_bad_rows = true, expect_new();
  options.add_special_tokens = false, expect_new();
  options.add_special_tokens = true, expect_new();
  options.append_concat_token = true, expect_new();
  options.completion_only_loss = false, expect_new();
  options.assistant_only_loss = true, expect_new();
  options.shuffle = true, expect_new();
  options.seed = 1, expect_new();
  options.vocab_size = 300, expect_new();
  options.separate_documents = false, expect_new();
  options.max_rows = 5, expect_new();
  options.dataset_text_field = "t", expect_new();
  chat_template = "u", expect_new();
  tool_template = "{{ tools }}", expect_new();
  tokenizer->set_eos_token("<|e|>"), expect_new();
  request.split = "train[:1]", expect_new();
  request.load.columns = {{"text", "t"}}, expect_new();
  request.load.skip_bad_rows = true, expect_new();
  folder.put("a.jsonl", "{\"text\": \"y\"}\n"), expect_new();
  const auto second = folder.put("b.jsonl", "{\"text\": \"z\"}\n").string();
  request.names = file + "," + second, expect_new();
  // The first half of each, or of both together.
  request.names = (folder.path() / "[ab].jsonl").string(), expect_new();
  request.names = file + "," + file, expect_new();
  request.weights = {1, 1}, expect_new();
  request.seed = 3, expect_new();
  tokenizer->add_tokens({{.content = "<new>"}}), expect_new();
  tokenizer->add_tokens({{.content = "<newer>", .lstrip = true}}), expect_new();
  options.pairs.emplace(), expect_new();
  options.pairs->text_column = "a", expect_new();
  options.pairs->summary_column = "b", expect_new();
  options.pairs->source_prefix = "p: ", expect_new();
  options.pairs->source_lang = "en", expect_new();
  options.pairs->target_lang = "de", expect_new();
  options.pairs->max_source_length = 7, expect_new();
  options.pairs->max_target_length = 7, expect_new();
  options.preference.emplace(), expect_new();
  options.preference->truncation_mode = "keep_end", expect_new();
}

// Each file of a tokenizer's folder that it reads; config.json is not one of them but for what it
// says of the class.
TEST(TokenCache, TheKeyFollowsTheTokenizersFiles) {
  const TemporaryFolder folder, data;
  const DataRequest request{.names = data.put("a.jsonl", "{\"text\": \"x\"}\n").string()};
  make_byte_tokenizer(folder);
  const PrepareOptions options;
  const auto key = [&] {
    return token_cache_key({request, options, *text::Tokenizer::load(folder.path()), "t"});
  };
  std::vector<std::string> keys = {key()};
  EXPECT_EQ(key(), keys[0]);
  folder.put("other.txt", "nobody reads this");
  EXPECT_EQ(key(), keys[0]);
  const auto expect_new = [&](const char* name, const std::string& text) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    folder.put(name, text);
    keys.push_back(key());
    EXPECT_EQ(std::count(keys.begin(), keys.end(), keys.back()), 1) << name;
  };
  expect_new("tokenizer.json", read_file(folder.path() / "tokenizer.json") + "\n");
  expect_new("tokenizer_config.json", read_file(folder.path() / "tokenizer_config.json") + "\n");
  expect_new("special_tokens_map.json", R"({"pad_token": "<|e|>"})");
  expect_new("added_tokens.json", R"({"<tool>": 261})");
  expect_new("chat_template.jinja", "{{ messages }}");
  expect_new("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  expect_new("additional_chat_templates/rag.jinja", "{{ documents }}");
  // Of config.json nothing but the class that it chooses, where no other file does.
  folder.put("config.json", R"({"model_type": "llama"})");
  EXPECT_EQ(key(), keys.back());
  expect_new("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  expect_new("config.json", R"({"model_type": "gpt2"})");
  expect_new("config.json", R"({"model_type": "qwen2"})");
}

TEST(TokenCache, TheKeyFollowsTheDateThatATemplateWrites) {
  const TemporaryFolder folder;
  const DataRequest request{.names = folder.put("a.jsonl", "{\"text\": \"x\"}\n").string()};
  const auto tokenizer = make_byte_tokenizer(folder);
  const PrepareOptions options;
  constexpr std::time_t kDay = 24 * 3600;
  std::tm local{};
  local.tm_year = 126, local.tm_mday = 15, local.tm_hour = 12;
  const std::time_t noon = std::mktime(&local);
  const auto key = [&](const std::string& source, std::time_t time) {
    return token_cache_key({request, options, *tokenizer, source, time});
  };
  struct Case {
    const char* source;
    std::time_t later;
    bool is_same;
  };
  for (const Case& c : {
           Case{"{{ messages }}", 400 * kDay, true},
           Case{"{# strftime_now('%d') #}strftime_now('%d')", 400 * kDay, true},
           Case{"{{ strftime_now('%d %b %Y') }}", 3600, true},
           Case{"{{ strftime_now('%d %b %Y') }}", kDay, false},
           Case{"{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", kDay, true},
           Case{"{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", 400 * kDay,
                false},
           Case{"{{ strftime_now('%H:%M') }}", 60, false},
           Case{"{% set f = '%Y' %}{{ strftime_now(f) }}", 1, false},
       }) {
    EXPECT_EQ(key(c.source, noon) == key(c.source, noon + c.later), c.is_same) << c.source;
  }
}

}  // namespace
}  // namespace strata::data
