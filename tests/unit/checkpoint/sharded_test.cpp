// Oracle: round trip - what was saved on one rank, read back whole on one rank and piece by piece
// on the ranks of another world size.
#include "strata/checkpoint/sharded.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <gtest/gtest.h>

#include "../base/refusing_queue.h"
#include "../temporary_folder.h"
#include "rank_threads.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/formats/safetensors.h"
#include "troubled_disks.h"

namespace strata::checkpoint {
namespace {

using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

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
// alone (train/setup/strategy.cpp), so these pairs are all pairs of world sizes and strategies.
// What a reader takes is decided by its place in its shard group.
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
        request.blocks = kTinyBlocks;
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
          PieceReader pieces(folder / "checkpoint-4", kReaders[r % std::size(kReaders)]);
          load(pieces, *reader.store, reader.optimizer.get());
          expect_state(reader, r, whole);
        }
      }
    }
  }
}

// As versions before blocks left it.
void forget_blocks(const fs::path& saved) {
  Manifest manifest = read_manifest(saved);
  for (auto& [name, record] : manifest.tensors) {
    for (PieceRecord& piece : record.pieces) {
      piece.block_bytes = 0;
      piece.block_checksums.clear();
    }
  }
  write_file_atomically(saved / "manifest.json", manifest_text(manifest));
}

struct Readings {
  uint64_t wanted = 0;
  uint64_t read = 0;
  uint64_t num_ranges = 0;
};

// By all ranks of a world together; every one gets what it wants.
Readings read_by(int readers, const fs::path& saved, const PieceReaderOptions& options,
                 const std::map<std::string, at::Tensor>& whole) {
  Readings all;
  for (int r = 0; r < readers; ++r) {
    Rank reader(r, readers);
    PieceReader pieces(saved, options);
    load(pieces, *reader.store, reader.optimizer.get());
    expect_state(reader, r, whole);
    const auto own = local_pieces(*reader.store, reader.optimizer.get());
    all.wanted += size_bytes(own);
    all.read += pieces.bytes_read();
    all.num_ranges += own.size();
  }
  return all;
}

TEST(Sharded, ReadersOfPartsReadLittleMoreThanTheyWant) {
  for (const auto& [writers, readers] :
       {std::pair(1, 2), std::pair(1, 5), std::pair(2, 3), std::pair(4, 2)}) {
    TemporaryFolder folder;
    RankThreads ranks(writers);
    Rank source(0, 1);
    const auto whole = fill(source);
    ranks.run<IoError>([&](Rank& rank) {
      fill(rank, whole);
      SaveRequest request{.output_dir = folder.path(), .step = 4, .num_updates = 4};
      request.blocks = kTinyBlocks;
      write_checkpoint(request, local_pieces(*rank.store, rank.optimizer.get()), role_of(rank.mesh),
                       *rank.mesh.world);
    });
    const fs::path saved = folder / "checkpoint-4";
    const std::span plain_and_streamed = std::span(kReaders).first(2);
    for (const PieceReaderOptions& options : plain_and_streamed) {
      const Readings found = read_by(readers, saved, options, whole);
      EXPECT_GE(found.read, found.wanted);
      // A wanted range begins and ends in some block, and goes on behind the end of a piece.
      const uint64_t most_parts = found.num_ranges + static_cast<uint64_t>(writers) * 3 * 4;
      EXPECT_LE(found.read, found.wanted + 2 * kTinyBlocks.least_bytes * most_parts);
    }
    uint64_t by_blocks = read_by(readers, saved, {}, whole).read;
    forget_blocks(saved);
    for (const PieceReaderOptions& options : plain_and_streamed) {
      const Readings found = read_by(readers, saved, options, whole);
      if (writers < readers) {
        EXPECT_GT(found.read, by_blocks) << writers << " to " << readers;
      }
    }
  }
}

// Replicas hold the same: together they read it once.
TEST(Sharded, ReplicasReadAPartEachAndHaveTheRestFromEachOther) {
  TemporaryFolder folder;
  Rank writer(0, 1);
  const auto whole = fill(writer);
  const auto save_step = [&](int64_t step) {
    SaveRequest request{.output_dir = folder.path(), .step = step, .num_updates = step};
    request.blocks = kTinyBlocks;
    return write_checkpoint(request, local_pieces(*writer.store, writer.optimizer.get()),
                            role_of(writer.mesh), *writer.mesh.world);
  };
  const fs::path saved = save_step(4), damaged = save_step(5);
  // In what the last reader has to read.
  const PieceRecord last =
      read_manifest(damaged).tensors.at("exp_avg_sq/model.norm.weight").pieces[0];
  std::string bytes = read_file(damaged / last.file);
  const hf::SafetensorsFile layout(damaged / last.file);
  const uint64_t at = layout.file_offset(*layout.find(last.key));
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_file_atomically(damaged / last.file, bytes);
  for (const auto& [size, shard_size] :
       {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2), std::pair(4, 4)}) {
    RankThreads ranks(size, /*shared_memory=*/true, shard_size);
    std::vector<uint64_t> read(static_cast<size_t>(size)), wanted(static_cast<size_t>(size));
    ranks.run<FormatError>([&](Rank& rank) {
      const auto own = static_cast<size_t>(rank.mesh.world->rank());
      PieceReader pieces(saved, kReaders[own % 2]);
      load(pieces, *rank.store, rank.optimizer.get());
      EXPECT_EQ(rank.optimizer->num_steps(), 4);
      expect_state(rank, rank.mesh.shard->rank(), whole);
      read[own] = pieces.bytes_read();
      wanted[own] = size_bytes(local_pieces(*rank.store, rank.optimizer.get()));
    });
    uint64_t all_read = 0, all_wanted = 0;
    for (size_t i = 0; i < read.size(); ++i) {
      all_read += read[i];
      all_wanted += wanted[i];
      // No piece of the model is a third of it.
      EXPECT_LT(read[i], (shard_size == size ? 2 : 1) * wanted[i]);
    }
    const uint64_t replicas = static_cast<uint64_t>(size / shard_size);
    EXPECT_LE(all_read, all_wanted / replicas + 2 * kTinyBlocks.least_bytes * 64 * replicas);
    // What one cannot read fails on all, and nobody waits.
    std::atomic<int> num_failed = 0;
    EXPECT_THROW(ranks.run<FormatError>([&](Rank& rank) {
      PieceReader pieces(damaged);
      try {
        load(pieces, *rank.store, rank.optimizer.get());
      } catch (const Error&) {
        ++num_failed;
        throw;
      }
    }),
                 FormatError);
    EXPECT_EQ(num_failed, static_cast<int>(replicas));
    ranks.run<FormatError>([&](Rank& rank) {
      PieceReader pieces(saved);
      load(pieces, *rank.store, rank.optimizer.get());
      expect_state(rank, rank.mesh.shard->rank(), whole);
    });
  }
}

// Oracle: what the kernel counts.
TEST(Sharded, BytesReadAreThoseThatTheKernelCounts) {
  TemporaryFolder folder;
  Rank writer(0, 1);
  const auto whole = fill(writer);
  const fs::path saved = save(folder.path(), 1, *writer.store, writer.optimizer.get(), {});
  const auto counted = [] {
    const std::string text = read_file("/proc/thread-self/io");
    return std::stoull(text.substr(text.find("rchar: ") + 7));
  };
  Rank reader(1, 3);
  PieceReader pieces(saved);
  const uint64_t before = counted();
  load(pieces, *reader.store, reader.optimizer.get());
  const uint64_t found = counted() - before;
  EXPECT_GE(found, pieces.bytes_read());
  EXPECT_LE(found, pieces.bytes_read() + 4096) << "more than the counting itself";
}

// One process reads what more ranks wrote than it may have files open.
TEST(Sharded, FilesOfManyRanksAreNotOpenAtOnce) {
  TemporaryFolder folder;
  Rank source(0, 1);
  const auto whole = fill(source);
  RankThreads ranks(5);
  ranks.run<IoError>([&](Rank& rank) {
    fill(rank, whole);
    save(folder.path(), 1, *rank.store, rank.optimizer.get(), {});
  });
  const auto num_open = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = num_open();
  for (const size_t most : {1, 2, 5, 128}) {
    Rank reader(0, 1);
    PieceReader pieces(folder / "checkpoint-1", {.most_open = most});
    load(pieces, *reader.store, reader.optimizer.get());
    expect_state(reader, 0, whole);
    pieces.verify_all();
    EXPECT_LE(num_open() - before, static_cast<std::ptrdiff_t>(std::min<size_t>(most, 5)));
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

}  // namespace
}  // namespace strata::checkpoint
