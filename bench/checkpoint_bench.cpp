// Writes and reads one state of a given size as a checkpoint, and as one plain file: seconds as
// JSON. Owns: a temporary folder. bench/checkpoint.py runs it and compares.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
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

// What went before must not be paid for by what comes next: nothing is left to write, and pages
// that were freed are as cold for one reader as for the other (virtual machines hand them back to
// their host after about two seconds, and fetching them again takes longer than reading the disk).
void settle() {
  ::sync();
  std::this_thread::sleep_for(std::chrono::seconds(3));
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

// One file, 16 MB at a time, and one fsync. `reserves`: its space is taken first, as ours is.
void write_plainly(const fs::path& path, const std::vector<LocalPiece>& pieces, bool reserves) {
  const strata::Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (reserves) {
    strata::real_file_system().reserve(file.get(), strata::checkpoint::size_bytes(pieces));
  }
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

// The bound of the disk: the same bytes past the page cache, from and to one block of memory.
class DirectBlock {
 public:
  explicit DirectBlock(size_t size)
      : size_(size), data_(static_cast<std::byte*>(std::aligned_alloc(4096, size)), std::free) {
    std::memset(data_.get(), 7, size_);
  }

  void write(const fs::path& path, int count) const {
    const strata::Descriptor file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666));
    strata::real_file_system().reserve(file.get(), size_ * static_cast<size_t>(count));
    uint64_t at = 0;
    for (int i = 0; i < count; ++i) {
      at += strata::write_fully(file.get(), {data_.get(), size_}, at);
    }
    if (::fsync(file.get()) != 0) throw strata::IoError("bench: found a failing fsync");
  }

  void read(const fs::path& path) const {
    const strata::Descriptor file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    while (::read(file.get(), data_.get(), size_) > 0) {
    }
  }

 private:
  size_t size_;
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
};

class Round {
 public:
  Round(fs::path folder, std::vector<LocalPiece> pieces)
      : folder_(std::move(folder)), pieces_(std::move(pieces)) {
    seconds_["copy_first"] = seconds_of([&] { copy_ = snapshot(pieces_, {}); });
    copy_ = snapshot_memory(pieces_);  // as a run takes it before its first save
    seconds_["copy"] = seconds_of([&] { copy_ = snapshot(pieces_, std::move(copy_)); });
  }

  void plain(bool reserves) {
    const fs::path path = folder_ / "plain";
    settle();
    seconds_[reserves ? "plain_reserved" : "plain_write"] =
        seconds_of([&] { write_plainly(path, copy_, reserves); });
    drop_cache(folder_);
    if (!reserves) {
      settle();
      seconds_["plain_read"] = seconds_of([&] { read_plainly(path, pieces_); });
    }
    fs::remove(path);
  }

  void direct() {
    const fs::path path = folder_ / "plain";
    const DirectBlock block(kTensorElements * sizeof(float));
    settle();
    seconds_["direct_write"] =
        seconds_of([&] { block.write(path, static_cast<int>(pieces_.size())); });
    settle();
    seconds_["direct_read"] = seconds_of([&] { block.read(path); });
    fs::remove(path);
  }

  void checkpoint() {
    settle();
    seconds_["save"] = seconds_of([&] {
      write_checkpoint({.output_dir = folder_, .step = 1, .small_files = {}}, copy_, {}, *group_);
    });
    drop_cache(folder_);
    settle();
    seconds_["load"] = seconds_of([&] {
      strata::checkpoint::PieceReader reader(folder_ / "checkpoint-1");
      std::vector<strata::checkpoint::WantedRange> wanted;
      for (const LocalPiece& piece : pieces_) {
        wanted.push_back({piece.tensor, 0, bytes_of(piece.data)});
      }
      reader.read(wanted);
    });
    fs::remove_all(folder_ / "checkpoint-1");
  }

  std::string json() const {
    std::string text;
    for (const auto& [name, value] : seconds_) {
      text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", name, value);
    }
    return "{" + text + "}\n";
  }

 private:
  fs::path folder_;
  std::vector<LocalPiece> pieces_, copy_;
  std::unique_ptr<strata::comm::Group> group_ = strata::comm::make_single_group();
  std::map<std::string, double> seconds_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: checkpoint_bench FOLDER BYTES NUMBER_OF_THE_ROUND\n", stderr);
    return 2;
  }
  Round round(argv[1], make_state(std::atoll(argv[2])));
  // Each comes first, second, third and last in turn.
  for (int i = 0; i < 4; ++i) {
    switch ((i + std::atoi(argv[3])) % 4) {
      case 0:
        round.plain(/*reserves=*/false);
        break;
      case 1:
        round.plain(/*reserves=*/true);
        break;
      case 2:
        round.direct();
        break;
      default:
        round.checkpoint();
    }
  }
  fmt::print("{}", round.json());
  return 0;
}
