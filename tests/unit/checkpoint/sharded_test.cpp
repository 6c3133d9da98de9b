// Oracle: round trip - what was saved on one rank, read back whole on one rank and piece by piece
// on the ranks of another world size.
#include "strata/checkpoint/sharded.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "../base/refusing_queue.h"
#include "../temporary_folder.h"
#include "rank_threads.h"
#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/safetensors.h"
#include "troubled_disks.h"

namespace strata::checkpoint {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

// With plain calls, and in small blocks ahead of use, past the page cache and through it.
const PieceReaderOptions kReaders[] = {
    {},
    {.streamed_bytes = 0, .read_ahead = {.block_bytes = 4096, .num_blocks = 2}},
    {.streamed_bytes = 0, .read_ahead = {.block_bytes = 65536, .num_blocks = 3}}};

void expect_state(Rank& reader, int rank, const std::map<std::string, at::Tensor>& whole) {
  for (int u = 0; u < reader.store->num_units(); ++u) {
    for (const shard::Piece& piece : pieces_of(reader.store->unit(u).segments[0], rank)) {
      const at::Tensor wanted = whole.at(piece.parameter->name())
                                    .reshape({-1})
                                    .narrow(0, piece.tensor_begin, piece.length);
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, piece.shard_begin, piece.length);
      };
      EXPECT_TRUE(at::equal(part(reader.store->home(u, 0).value), wanted));
      EXPECT_TRUE(at::equal(part(reader.optimizer->moments(u, 0).exp_avg), wanted * 2));
      EXPECT_TRUE(at::equal(part(reader.optimizer->moments(u, 0).exp_avg_sq), wanted.square()));
    }
  }
}

TEST(Sharded, AnyWorldSizeReadsWhatOneRankWrote) {
  TemporaryFolder folder;
  Rank writer(0, 1);
  const auto whole = fill(writer);
  writer.optimizer->set_num_steps(6);  // one of seven updates was left out
  const fs::path saved = save(folder.path(), 7, *writer.store, writer.optimizer.get(),
                              {{"trainer_state.json", "{}\n"}});
  EXPECT_EQ(saved.filename(), "checkpoint-7");
  EXPECT_EQ(read_file(folder.path() / "latest"), "checkpoint-7\n");
  EXPECT_EQ(read_file(saved / "trainer_state.json"), "{}\n");
  for (int size : {1, 2, 3, 5}) {
    for (int r = 0; r < size; ++r) {
      for (const PieceReaderOptions& options : kReaders) {
        Rank reader(r, size);
        PieceReader pieces(saved, options);
        load(pieces, *reader.store, reader.optimizer.get());
        EXPECT_EQ(reader.optimizer->num_steps(), 6);
        expect_state(reader, r, whole);
      }
    }
  }
}

// Every mesh that a strategy makes of four ranks or fewer: what rests where is the mesh's matter
// alone (train/strategy.cpp), so these pairs are all pairs of world sizes and strategies. What a
// reader takes is decided by its place in its shard group.
TEST(Sharded, EveryMeshReadsWhatEveryOtherWrote) {
  const std::pair<int, int> meshes[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1},
                                        {3, 3}, {4, 1}, {4, 2}, {4, 4}};
  for (const auto& [writers, shard_size] : meshes) {
    RankThreads ranks(writers, /*shared_memory=*/true, shard_size);
    Rank source(0, 1);
    const auto whole = fill(source);
    for (const bool is_whole : {false, true}) {
      TemporaryFolder folder;
      ranks.run<IoError>([&](Rank& rank) {
        fill(rank, whole);
        SaveRequest request{.output_dir = folder.path(), .step = 4, .num_updates = 4};
        request.streamed = {.bytes = 0, .block_bytes = 8192};
        if (is_whole) request.whole = whole_files(rank);
        write_checkpoint(request, local_pieces(*rank.store, rank.optimizer.get()),
                         role_of(rank.mesh), *rank.mesh.world);
      });
      if (!is_whole) {
        const auto files = fs::directory_iterator(folder / "checkpoint-4");
        EXPECT_EQ(std::count_if(
                      begin(files), end(files),
                      [](const auto& entry) { return entry.path().extension() == ".safetensors"; }),
                  shard_size)
            << "replicas write nothing";
      }
      for (int readers : {1, 2, 3, 4}) {
        for (int r = 0; r < readers; ++r) {
          Rank reader(r, readers);
          PieceReader pieces(folder / "checkpoint-4", kReaders[r % 3]);
          load(pieces, *reader.store, reader.optimizer.get());
          expect_state(reader, r, whole);
        }
      }
    }
  }
}

TEST(Sharded, ZerosAreFoundAndEverythingIsProved) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  const std::string name = "model.embed_tokens.weight";
  for (nn::Parameter* parameter : rank.model->parameters()) {
    if (parameter->name() != name) continue;
    shard::place_tensor(*rank.store, *parameter, at::zeros(parameter->shape()));
  }
  const fs::path saved = save(folder.path(), 1, *rank.store, rank.optimizer.get(), {});
  for (const PieceReaderOptions& options : kReaders) {
    PieceReader pieces(saved, options);
    EXPECT_TRUE(pieces.is_zero("parameter/" + name));
    EXPECT_FALSE(pieces.is_zero("exp_avg/" + name));
    EXPECT_FALSE(pieces.is_zero("parameter/model.norm.weight"));
    pieces.verify_all();
  }
}

// Two ranks of a group that write one after the other stand for two that write together: what the
// protocol adds is order, not bytes.
TEST(Sharded, WholeTensorsAreReadAtAnyWorldSize) {
  TemporaryFolder folder;
  Rank writer(0, 1);
  const auto whole = fill(writer);
  SaveRequest request{.output_dir = folder.path(), .step = 3, .num_updates = 3, .small_files = {}};
  request.whole = whole_files(writer);
  const fs::path saved =
      write_checkpoint(request, local_pieces(*writer.store, writer.optimizer.get()),
                       role_of(writer.mesh), *writer.mesh.world);
  const hf::SafetensorsFile weights(saved / "model.safetensors");
  EXPECT_EQ(weights.tensors().size(), whole.size());
  for (const auto& [name, value] : whole) {
    const hf::TensorInfo* info = weights.find(name);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(info->shape, value.sizes().vec());
    EXPECT_EQ(0, std::memcmp(weights.bytes(*info).data(), value.data_ptr(), value.nbytes()));
  }
  EXPECT_EQ(hf::SafetensorsFile(saved / kWholeOptimizerFile).tensors().size(), 2 * whole.size());
  Rank reader(1, 3);
  PieceReader pieces(saved);
  load(pieces, *reader.store, reader.optimizer.get());
  for (const shard::Piece& piece : pieces_of(reader.store->unit(0).segments[0], 1)) {
    const at::Tensor wanted =
        whole.at(piece.parameter->name()).reshape({-1}).narrow(0, piece.tensor_begin, piece.length);
    EXPECT_TRUE(at::equal(reader.store->home(0, 0).value.narrow(0, piece.shard_begin, piece.length),
                          wanted));
  }
}

TEST(Sharded, AFileThatIsCutShortWhileItIsReadIsAnError) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  const fs::path saved = save(folder.path(), 1, *rank.store, rank.optimizer.get(), {});
  PieceReader pieces(saved);
  const std::string name = "parameter/model.embed_tokens.weight";
  at::Tensor one = at::empty({1});
  pieces.read(name, 0, {static_cast<std::byte*>(one.data_ptr()), 4});
  fs::resize_file(saved / "rank-00000.safetensors", 100);
  const std::string message = message_of<IoError>([&] {
    pieces.read(name, 0, {static_cast<std::byte*>(one.data_ptr()), 4});
  });
  EXPECT_NE(message.find("rank-00000.safetensors: found its end"), std::string::npos) << message;
}

TEST(Sharded, AFileSystemThatRefusesDirectReadsIsReadThroughThePageCache) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const auto whole = fill(rank);
  const fs::path saved = save(folder.path(), 1, *rank.store, rank.optimizer.get(), {});
  int num_requests = 0;
  const auto load_with = [&](const std::function<int(int)>& refusal) {
    Rank reader(0, 1);
    PieceReader pieces(saved,
                       {.streamed_bytes = 0,
                        .read_ahead = {.block_bytes = 4096, .num_blocks = 2, .open_queue = [&] {
                                         return std::make_unique<strata::testing::RefusingQueue>(
                                             refusal, &num_requests);
                                       }}});
    load(pieces, *reader.store, reader.optimizer.get());
    expect_state(reader, 0, whole);
  };
  load_with([](int) { return 0; });
  const int all = num_requests;
  ASSERT_GT(all, 3);
  for (int at = 0; at < all; ++at) load_with([&](int n) { return n >= at ? EINVAL : 0; });
}

TEST(Sharded, ACheckpointInItsPlaceIsSavedWhateverComesOfLatest) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const auto whole = fill(rank);
  AfterSave after;
  SaveRequest request{
      .output_dir = folder.path(), .step = 4, .num_updates = 4, .small_files = {}, .after = &after};
  strata::testing::RefusesLatest files;
  const auto write = [&] {
    return write_checkpoint(request, local_pieces(*rank.store, rank.optimizer.get()),
                            role_of(rank.mesh), *rank.mesh.world, files);
  };
  PieceReader pieces(write());
  EXPECT_NE(after.trouble.find("checkpoint-4 is saved, but "), std::string::npos) << after.trouble;
  EXPECT_NE(after.trouble.find("no space left"), std::string::npos) << after.trouble;
  EXPECT_TRUE(after.is_durable);
  EXPECT_FALSE(after.replaces_older());
  load(pieces, *rank.store, rank.optimizer.get());
  expect_state(rank, 0, whole);
  request.after = nullptr;
  EXPECT_THROW(write(), IoError);
}

// FULL_STATE_DICT with a weight of two names and a tensor that does not train: what the manifest
// does not list is read back as well.
TEST(Sharded, WholeFilesAreReadBackToTheLastTensor) {
  for (const char* damaged : {"", "second.weight", "fixed"}) {
    TemporaryFolder folder;
    Rank rank(0, 1);
    fill(rank);
    SaveRequest request{
        .output_dir = folder.path(), .step = 4, .num_updates = 4, .small_files = {}};
    request.whole = whole_files(rank);
    request.whole->names.at("model.embed_tokens.weight").push_back("second.weight");
    request.whole->fixed = {{"fixed", at::rand({3, 5})}};
    // Bytes of that tensor change on their way to the disk.
    class Flips : public FileSystem {
     public:
      explicit Flips(std::string key) : key_(std::move(key)) {}
      int sync(int descriptor) override {
        const fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor));
        if (!key_.empty() && path.filename() == "model.safetensors") flip(path);
        return FileSystem::sync(descriptor);
      }

     private:
      void flip(const fs::path& path) {
        const hf::SafetensorsFile file(path);
        const hf::TensorInfo* info = file.find(key_);
        if (info == nullptr) return;
        const Descriptor out(open_existing(path));
        const char other = static_cast<char>(std::to_integer<char>(file.bytes(*info)[9]) ^ 4);
        write(out.get(), std::as_bytes(std::span(&other, 1)), file.file_offset(*info) + 9);
      }
      std::string key_;
    } files(damaged);
    const std::string message = message_of<IoError>([&] {
      write_checkpoint(request, local_pieces(*rank.store, rank.optimizer.get()), role_of(rank.mesh),
                       *rank.mesh.world, files);
    });
    EXPECT_EQ(message.empty(), std::string(damaged).empty()) << message;
    EXPECT_EQ(list(folder.path()).size(), message.empty() ? 1U : 0U);
    if (!message.empty()) {
      EXPECT_NE(message.find("model.safetensors: found other values in"), std::string::npos)
          << message;
    }
  }
}

TEST(Sharded, DamageIsNamed) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  const fs::path saved = save(folder.path(), 1, *rank.store, rank.optimizer.get(), {});
  const fs::path file = saved / "rank-00000.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 0x5a);
  write_file_atomically(file, bytes);
  for (const PieceReaderOptions& options : kReaders) {
    const std::string message = message_of<FormatError>([&] {
      PieceReader pieces(saved, options);
      load(pieces, *rank.store, rank.optimizer.get());
    });
    EXPECT_NE(message.find("rank-00000.safetensors"), std::string::npos) << message;
    EXPECT_NE(message.find("checksum"), std::string::npos) << message;
    EXPECT_THROW(PieceReader(saved, options).verify_all(), FormatError);
  }
}

TEST(Sharded, PiecesThatDoNotTileAreRefused) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const fs::path saved = save(folder.path(), 1, *rank.store, nullptr, {});
  Manifest manifest = read_manifest(saved);
  manifest.tensors.at("parameter/model.norm.weight").pieces[0].begin = 1;
  const std::string text = manifest_text(manifest);
  const std::string message = message_of<FormatError>([&] { parse_manifest(text, "file"); });
  EXPECT_NE(message.find("model.norm.weight"), std::string::npos) << message;
}

TEST(Sharded, EveryFlippedByteOfTheManifestIsFound) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const fs::path saved =
      save(folder.path(), 1, *rank.store, nullptr, {{"progress.json", "{\"num_tokens\": 12}"}});
  const std::string text = read_file(saved / "manifest.json");
  parse_manifest(text, "file");
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    // What follows the checksum is no part of it: it must only stay JSON.
    if (at >= text.rfind('"') + 1) continue;
    EXPECT_THROW(parse_manifest(damaged, "file"), FormatError) << at;
  }
  for (size_t size = 0; size < text.rfind('}'); ++size) {
    EXPECT_THROW(parse_manifest(std::string_view(text).substr(0, size), "file"), FormatError)
        << size;
  }
}

TEST(Sharded, SmallFilesAreProved) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const fs::path saved =
      save(folder.path(), 1, *rank.store, nullptr, {{"progress.json", "{\"num_tokens\": 12}"}});
  EXPECT_EQ(PieceReader(saved).small_file("progress.json"), "{\"num_tokens\": 12}");
  write_file_atomically(saved / "progress.json", "{\"num_tokens\": 13}");
  EXPECT_THROW(PieceReader(saved).small_file("progress.json"), FormatError);
  EXPECT_THROW(PieceReader(saved).small_file("settings.json"), FormatError);
}

TEST(Sharded, AStateWithoutOptimizerCannotBeResumedWithOne) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const fs::path saved = save(folder.path(), 1, *rank.store, nullptr, {});
  PieceReader pieces(saved);
  load(pieces, *rank.store, nullptr);
  EXPECT_THROW(load(pieces, *rank.store, rank.optimizer.get()), FormatError);
}

TEST(Sharded, ListResolveAndRotateSeeWholeCheckpointsOnly) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  EXPECT_THROW(candidates("true", folder.path()), ConfigError);
  for (int step : {2, 10}) save(folder.path(), step, *rank.store, nullptr, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the file system's clock is coarse
  save(folder.path(), 9, *rank.store, nullptr, {});
  fs::create_directories(folder.path() / "checkpoint-11");  // no manifest: not a checkpoint
  fs::create_directories(folder.path() / "checkpoint-x");
  folder.put("checkpoint-12/trainer_state.json", "{}");
  folder.put("checkpoint-13", "");
  folder.put("checkpoint-8/rank-00000.safetensors", "");
  const auto others = passed_over(folder.path());
  ASSERT_EQ(others.size(), 4U);
  const std::vector<std::pair<std::string, std::string>> reasons = {
      {"checkpoint-8", "not whole"},
      {"checkpoint-11", "it is empty"},
      {"checkpoint-12", "another program saved it"},
      {"checkpoint-13", "it is no folder"}};
  for (size_t i = 0; i < reasons.size(); ++i) {
    EXPECT_EQ(others[i].folder.filename(), reasons[i].first);
    EXPECT_NE(others[i].reason.find(reasons[i].second), std::string::npos) << others[i].reason;
  }
  const auto found = list(folder.path());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found.back().filename(), "checkpoint-10");
  // What was there before `latest` was written is no continuation of what it names ...
  const std::vector<fs::path> own = {folder / "checkpoint-9", folder / "checkpoint-2"};
  EXPECT_EQ(candidates("true", folder.path()), own);
  EXPECT_EQ(set_aside(folder.path()), std::vector{fs::path(folder / "checkpoint-10")});
  // ... unless there is nothing else; what came later is newer.
  TemporaryFolder other;
  fs::copy(folder / "latest", other / "latest");
  fs::copy(folder / "checkpoint-10", other / "checkpoint-10", fs::copy_options::recursive);
  EXPECT_EQ(candidates("true", other.path()), std::vector{fs::path(other / "checkpoint-10")});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  fs::copy(folder / "latest", other / "latest", fs::copy_options::overwrite_existing);
  EXPECT_EQ(set_aside(other.path()), std::vector{fs::path(other / "checkpoint-10")});
  EXPECT_EQ(candidates("true", other.path()), std::vector{fs::path(other / "checkpoint-10")});
  fs::copy(folder / "checkpoint-10", folder / "checkpoint-12-copy", fs::copy_options::recursive);
  fs::remove_all(folder / "checkpoint-12");
  fs::rename(folder / "checkpoint-12-copy", folder / "checkpoint-12");
  EXPECT_EQ(candidates("true", folder.path()).front().filename(), "checkpoint-12");
  fs::remove_all(folder / "checkpoint-12");
  EXPECT_EQ(candidates("some/where", folder.path()), std::vector{fs::path("some/where")});
  EXPECT_EQ(candidates("some//where/", folder.path()), std::vector{fs::path("some/where")});
  // What an earlier run left counts for no limit and does not go.
  const std::vector<fs::path> all = {folder / "checkpoint-2", folder / "checkpoint-9",
                                     folder / "checkpoint-10"};
  rotate(folder.path(), 2);
  EXPECT_EQ(list(folder.path()), all);
  fs::create_directory_symlink(folder / "checkpoint-2", folder / "link");
  for (const fs::path& kept :
       {folder / "checkpoint-2", folder / "checkpoint-2/", folder / "link"}) {
    rotate(folder.path(), 1, {kept});
    EXPECT_EQ(list(folder.path()), all) << kept;
  }
  rotate(folder.path(), 1);
  EXPECT_EQ(list(folder.path()), (std::vector<fs::path>{all[1], all[2]}));
  // This run has passed its step: it is an old one.
  save(folder.path(), 11, *rank.store, nullptr, {});
  rotate(folder.path(), 1);
  EXPECT_EQ(list(folder.path()), std::vector{fs::path(folder / "checkpoint-11")});
  save(folder.path(), 9, *rank.store, nullptr, {});
  save(folder.path(), 12, *rank.store, nullptr, {});
  keep_only(folder / "checkpoint-9");
  ASSERT_EQ(list(folder.path()).size(), 1U);
  EXPECT_EQ(read_file(folder / "latest"), "checkpoint-9\n");
}

void set_time(const fs::path& file, int64_t seconds) {
  const timespec times[2] = {{seconds, 0}, {seconds, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

TEST(Sharded, ACheckpointCountsAsSavedSinceThoughLatestCouldNotBeWritten) {
  struct Row {
    int64_t latest, first,
        last;  // when `latest` and the checkpoints of steps 2 and 10 were written
    std::string saved;
  };
  for (const Row& row : {Row{50, 50, 50, ""}, Row{150, 50, 50, "true"}, Row{50, 50, 150, "true"},
                         Row{0, 50, 150, "true"}, Row{0, 50, 50, ""},
                         // The later step is an earlier run's: "the newest" would be that one.
                         Row{50, 150, 50, "checkpoint-2"}}) {
    TemporaryFolder folder;
    EXPECT_EQ(saved_since(folder.path(), 0), "");
    set_time(folder.put("checkpoint-2/manifest.json", "{}"), row.first);
    set_time(folder.put("checkpoint-10/manifest.json", "{}"), row.last);
    if (row.latest > 0) set_time(folder.put("latest", "checkpoint-2"), row.latest);
    EXPECT_EQ(fs::path(saved_since(folder.path(), 100)).filename(), row.saved)
        << row.latest << " " << row.last;
  }
}

}  // namespace
}  // namespace strata::checkpoint
