// Large files written at the speed of the disk: bytes are collected in aligned blocks that pass the
// page cache by, and a thread writes one block while the caller fills the next. Owns: the blocks,
// the thread. Never: the descriptors, their names or their sizes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "strata/base/file_system.h"

namespace strata {

// Consecutive bytes make full blocks; a jump ends one early, which is right but slow.
// Invariants: no byte is lost between put() and a finish() that answered 0.
// Threads: one caller; `files` is called by one thread at a time. Where the system starts no more
// threads, the caller's writes each block.
// Memory: two blocks, from the first byte to the end.
class WriteStream {
 public:
  static constexpr size_t kBlockBytes = size_t{4} << 20;

  // `buffered` and `direct` are descriptors of one file; `direct` may be negative: then every byte
  // goes through the page cache. Both and `files` must outlive the stream. `block_bytes`: a
  // multiple of kDirectAlignment.
  WriteStream(FileSystem& files, int buffered, int direct, size_t block_bytes = kBlockBytes);
  // Waits for the block that is being written; what was not finished is lost.
  ~WriteStream();
  WriteStream(const WriteStream&) = delete;
  WriteStream& operator=(const WriteStream&) = delete;

  // Bytes for the file at `offset`. 0, or the errno of this or an earlier write.
  int put(std::span<const std::byte> data, uint64_t offset);
  // Writes what is left and waits. 0, or the errno of a write that failed. Syncs nothing.
  int finish();

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte, FreeMemory> memory;
    uint64_t base = 0;   // file offset of the memory's first byte, aligned
    uint64_t begin = 0;  // bytes [begin, end) of the file are filled
    uint64_t end = 0;
  };

  Block& current() { return blocks_[current_]; }
  // Hands the current block to the thread, after the one before it, or writes it here where there
  // is none; starts the next at its end.
  void submit();
  // Starts it, if it does not run yet.
  bool has_thread();
  int wait();
  void serve();
  int write(const Block& block);
  int write_part(int descriptor, const Block& block, uint64_t begin, uint64_t end);

  FileSystem& files_;
  int buffered_;
  int direct_;
  size_t block_bytes_;
  std::array<Block, 2> blocks_;
  size_t current_ = 0;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const Block* job_ = nullptr;  // being written
  bool is_ending_ = false;
  int error_ = 0;
};

}  // namespace strata
