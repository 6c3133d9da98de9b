// Writes and reads one state of a given size as a checkpoint, and as one plain file: JSON lines of
// seconds. Owns: a temporary folder. bench/checkpoint.py runs it and compares.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/sharded.h"
#include "strata/comm/single_group.h"

namespace {

namespace fs = std::filesystem;
using strata::checkpoint::LocalPiece;

constexpr int64_t kTensorElements = int64_t{4} << 20;  // 16 MB, as a layer of a 7B model has

template <typename Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What the next reader finds on the disk, not in memory.
void drop_cache(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    const strata::Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::fsync(file.get());
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

std::vector<LocalPiece> make_state(int64_t bytes) {
  std::vector<LocalPiece> pieces;
  for (int64_t i = 0; i < bytes / 4 / kTensorElements; ++i) {
    pieces.push_back({fmt::format("parameter/layer.{}.weight", i),
                      {kTensorElements},
                      0,
                      at::full({kTensorElements}, static_cast<double>(i), at::kFloat)});
  }
  return pieces;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void write_plainly(const fs::path& path, const std::vector<LocalPiece>& pieces) {
  const strata::Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  uint64_t at = 0;
  for (const LocalPiece& piece : pieces) {
    at += strata::write_fully(file.get(), bytes_of(piece.data), at);
  }
  if (::fsync(file.get()) != 0) throw strata::IoError("bench: found a failing fsync");
}

void read_plainly(const fs::path& path, std::vector<LocalPiece>& pieces) {
  const strata::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (LocalPiece& piece : pieces) {
    auto rest = bytes_of(piece.data);
    while (!rest.empty()) {
      const ssize_t count = ::read(file.get(), rest.data(), rest.size());
      if (count <= 0) throw strata::IoError("bench: found a short file");
      rest = rest.subspan(static_cast<size_t>(count));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: checkpoint_bench FOLDER BYTES ROUNDS\n", stderr);
    return 2;
  }
  const fs::path folder = argv[1];
  std::vector<LocalPiece> pieces = make_state(std::atoll(argv[2]));
  const auto group = strata::comm::make_single_group();
  std::vector<LocalPiece> copy;
  for (int round = 0; round < std::atoi(argv[3]); ++round) {
    const double stall = seconds_of([&] { copy = snapshot(pieces, std::move(copy)); });
    const double plain_write = seconds_of([&] { write_plainly(folder / "plain", pieces); });
    const double save = seconds_of([&] {
      write_checkpoint({.output_dir = folder, .step = round, .small_files = {}}, copy, {}, *group);
    });
    drop_cache(folder);
    const double plain_read = seconds_of([&] { read_plainly(folder / "plain", pieces); });
    const fs::path saved = folder / fmt::format("checkpoint-{}", round);
    const double load = seconds_of([&] {
      strata::checkpoint::PieceReader reader(saved);
      for (const LocalPiece& piece : pieces) reader.read(piece.tensor, 0, bytes_of(piece.data));
    });
    fmt::print(
        "{{\"stall\": {}, \"plain_write\": {}, \"save\": {}, \"plain_read\": {}, \"load\": {}}}\n",
        stall, plain_write, save, plain_read, load);
    std::fflush(stdout);
    fs::remove_all(saved);
    fs::remove(folder / "plain");
  }
  return 0;
}
