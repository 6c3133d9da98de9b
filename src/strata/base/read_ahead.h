// A file read from front to back, some blocks ahead of whoever uses the bytes, past the page cache
// where its file system can do that. Owns: the blocks and the requests in flight. Never: what the
// bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/file_queue.h"

namespace strata {

struct ReadAheadOptions {
  size_t block_bytes = size_t{4} << 20;  // a multiple of kDirectAlignment
  size_t num_blocks = 4;                 // one in use, the others on their way
  // False: through the page cache, for files that other processes of the machine read as well.
  bool past_cache = true;
  // What carries the reads; a test gives one that refuses some.
  std::function<std::unique_ptr<FileQueue>()> open_queue = [] {
    return FileQueue::open({.depth = 4});
  };
};

// Invariants: next() hands out every byte of the range once, in order; a direct read that the file
// system refuses, at open or later, is made again through the page cache.
// Threads: one. Memory: num_blocks x block_bytes.
// Errors: IoError for a file that cannot be read or is shorter than the range.
class ReadAhead {
 public:
  explicit ReadAhead(const ReadAheadOptions& options = {});
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Bytes [begin, end) of the file from now on; what is left of an earlier range is dropped.
  void start(const std::filesystem::path& path, uint64_t begin, uint64_t end);
  // At most a block, valid until the next call; empty at the end of the range.
  std::span<const std::byte> next();

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte, FreeMemory> memory;
    uint64_t begin = 0;  // bytes [begin, end) of the file, begin aligned
    uint64_t end = 0;
    uint64_t middle = 0;  // [middle, end) is the file's last, partial page
    std::optional<FileQueue::Ticket> ticket = {};
  };

  void open(const std::filesystem::path& path);
  void issue(Block& block);
  void finish(Block& block);
  // With plain calls, through the page cache.
  void read_plainly(Block& block, uint64_t begin, uint64_t end) const;

  ReadAheadOptions options_;
  std::vector<Block> blocks_;
  std::optional<DirectFile> file_;
  Descriptor buffered_;
  std::unique_ptr<FileQueue> queue_;  // goes first: requests write to the blocks
  uint64_t begin_ = 0, end_ = 0;      // of the range
  uint64_t next_ = 0;                 // where the next block begins
  size_t current_ = 0;
  bool is_in_use_ = false;  // the current block was handed out
};

}  // namespace strata
