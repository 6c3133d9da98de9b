// Oracle: a checkpoint of which one thing was changed after it was saved: what reads it names that.
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "rank_threads.h"
#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/block_sums.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/manifest.h"
#include "strata/checkpoint/sharded.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

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

// A reader of a part proves the blocks that it lies in, and takes no other's word for them.
TEST(Sharded, DamageIsFoundInEveryBlockThatIsReadAndInNoOther) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  SaveRequest request{.output_dir = folder.path(), .step = 1, .num_updates = 1};
  request.blocks = kTinyBlocks;
  const fs::path saved = write_checkpoint(request, local_pieces(*rank.store, nullptr),
                                          role_of(rank.mesh), *rank.mesh.world);
  const std::string name = "parameter/model.embed_tokens.weight";
  const PieceRecord piece = read_manifest(saved).tensors.at(name).pieces.at(0);
  const auto bytes = static_cast<uint64_t>(piece.end) * sizeof(float);
  ASSERT_EQ(piece.block_bytes, kTinyBlocks.least_bytes);
  const uint64_t count = num_blocks(bytes, piece.block_bytes);
  ASSERT_EQ(piece.block_checksums.size(), count * kSumDigits);
  ASSERT_NE(bytes % piece.block_bytes, 0U) << "the last one is shorter";
  const fs::path file = saved / piece.file;
  const std::string whole = read_file(file);
  const hf::SafetensorsFile layout(file);
  const uint64_t begin = layout.file_offset(*layout.find(piece.key));
  for (uint64_t block = 0; block < count; ++block) {
    const uint64_t end = std::min((block + 1) * piece.block_bytes, bytes);
    for (const uint64_t at : {block * piece.block_bytes, end - 1}) {
      std::string damaged = whole;
      damaged[begin + at] = static_cast<char>(damaged[begin + at] ^ 0x10);
      write_file_atomically(file, damaged);
      for (const PieceReaderOptions& options : kReaders) {
        const auto read = [&](uint64_t from, uint64_t to) {
          at::Tensor out = at::empty({static_cast<int64_t>(to - from)});
          return message_of<FormatError>([&] {
            PieceReader(saved, options).read(name, static_cast<int64_t>(from), flat_bytes(out));
          });
        };
        const uint64_t first = block * piece.block_bytes / sizeof(float),
                       last = end / sizeof(float);
        // One element is enough to read its block.
        for (const auto& [from, to] : {std::pair(first, first + 1), std::pair(last - 1, last),
                                       std::pair(uint64_t{0}, first + 1)}) {
          const std::string message = read(from, to);
          const bool is_whole = num_blocks(to * sizeof(float), piece.block_bytes) == count &&
                                from * sizeof(float) < piece.block_bytes;
          EXPECT_NE(
              message.find(is_whole ? "for \"parameter/" : fmt::format("for block {} of", block)),
              std::string::npos)
              << message << " block " << block;
        }
        if (first > 0) {
          EXPECT_EQ(read(0, first), "");
        }
        if (end < bytes) {
          EXPECT_EQ(read(last, bytes / sizeof(float)), "");
        }
      }
    }
  }
}

TEST(Sharded, BlocksThatAreNotThoseOfTheirPieceAreRefused) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  SaveRequest request{.output_dir = folder.path(), .step = 1, .num_updates = 1};
  request.blocks = kTinyBlocks;
  const fs::path saved = write_checkpoint(request, local_pieces(*rank.store, nullptr),
                                          role_of(rank.mesh), *rank.mesh.world);
  const std::string name = "parameter/model.embed_tokens.weight";
  const Manifest whole = read_manifest(saved);
  const auto message_with = [&](uint64_t block_bytes, const std::string& sums) {
    Manifest manifest = whole;
    PieceRecord& piece = manifest.tensors.at(name).pieces.at(0);
    piece.block_bytes = block_bytes;
    piece.block_checksums = sums;
    write_file_atomically(saved / "manifest.json", manifest_text(manifest));
    return message_of<FormatError>([&] {
      at::Tensor one = at::empty({1});
      PieceReader(saved).read(name, 0, flat_bytes(one));
    });
  };
  const std::string& sums = whole.tensors.at(name).pieces.at(0).block_checksums;
  EXPECT_EQ(message_with(256, sums), "");
  EXPECT_NE(message_with(256, sums.substr(1)).find("found blocks of 256 bytes"), std::string::npos);
  EXPECT_NE(message_with(256, sums.substr(16)).find("found checksums of"), std::string::npos);
  EXPECT_NE(message_with(128, sums).find("found checksums of"), std::string::npos);
  EXPECT_NE(message_with(uint64_t{1} << 62, sums).find("found checksums of"), std::string::npos);
  EXPECT_NE(message_with(~uint64_t{0}, sums).find("expected an integer"), std::string::npos);
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

}  // namespace
}  // namespace strata::checkpoint
