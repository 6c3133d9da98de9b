// Reads and writes of files that go on while the caller computes: io_uring, or threads where the
// kernel refuses it (old kernels, containers whose seccomp profile forbids it).
// Owns: the requests in flight. Never: files, memory, or what the bytes mean.
// Source: io_uring(7), io_uring_setup(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>

#include "strata/base/descriptor.h"

namespace strata {

// Memory, offsets and lengths of direct transfers are multiples of this many bytes.
inline constexpr size_t kDirectAlignment = 4096;
constexpr uint64_t aligned_down(uint64_t bytes) { return bytes & ~uint64_t{kDirectAlignment - 1}; }
constexpr uint64_t aligned_up(uint64_t bytes) { return aligned_down(bytes + kDirectAlignment - 1); }

// A file of fixed size for transfers that pass the page cache by where its file system can do that
// (O_DIRECT), so that what is stored in it takes no memory.
// Errors: IoError when it cannot be created, or when the disk has no room for all of it: the blocks
// are reserved here, so that a disk that fills up later does not end a run.
class DirectFile {
 public:
  // A new file full of zeros.
  DirectFile(const std::filesystem::path& path, uint64_t size_bytes);
  // One that is there, for reading alone. `past_cache` false: through the page cache even where
  // direct transfers are possible.
  static DirectFile open_to_read(const std::filesystem::path& path, bool past_cache = true);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return file_.get(); }
  bool is_direct() const { return is_direct_; }

 private:
  DirectFile() = default;

  std::filesystem::path path_;
  uint64_t size_bytes_ = 0;
  Descriptor file_;
  bool is_direct_ = false;
};

struct FileQueueOptions {
  enum class Backend { kAutomatic, kIoUring, kThreads };
  Backend backend = Backend::kAutomatic;
  size_t block_bytes =
      size_t{1} << 20;  // a transfer is cut into requests of at least this size ...
  int depth = 8;        // ... and into at most so many
};

// Invariants: every byte of a transfer has arrived when wait() returns; a short read or write is
// continued, never taken for done. Memory given to read() and write() must stay in place until
// wait() or drain(). After a request that the kernel did not take, read() and write() only throw;
// what it took is still completed.
// Threads: one caller.
class FileQueue {
 public:
  using Ticket = uint64_t;

  // Throws IoError when `backend` names one that this kernel does not offer.
  static std::unique_ptr<FileQueue> open(const FileQueueOptions& options = {});
  virtual ~FileQueue() = default;  // implementations drain
  FileQueue(const FileQueue&) = delete;
  FileQueue& operator=(const FileQueue&) = delete;

  virtual const char* name() const = 0;  // "io_uring", "threads"

  // Start a transfer. Requires: `file` outlives it; for a direct file aligned memory, offset, size.
  Ticket read(const DirectFile& file, std::span<std::byte> data, uint64_t offset);
  Ticket write(const DirectFile& file, std::span<const std::byte> data, uint64_t offset);
  // Returns when the transfer is complete. Throws IoError naming file, size and offset; the ticket
  // is gone in either case.
  void wait(Ticket ticket);
  // Waits for everything in flight and forgets it, errors too. For the way out after an error, when
  // memory is about to go away.
  void drain() noexcept;
  size_t num_in_flight() const { return transfers_.size(); }

 protected:
  struct Block {
    Ticket ticket;
    int descriptor;
    bool is_write;
    std::byte* data;
    size_t size;
    uint64_t offset;
  };
  struct Completion {
    Block block;
    int64_t result;  // bytes, or -errno
  };

  explicit FileQueue(const FileQueueOptions& options) : options_(options) {}
  // Starts one request; may first settle() earlier ones to make room.
  virtual void start(const Block& block) = 0;
  // Waits for one request. Requires: one is in flight.
  virtual Completion complete() = 0;
  void settle(const Completion& completion);

  FileQueueOptions options_;

 private:
  struct Transfer {
    std::filesystem::path path;
    bool is_write;
    size_t size;
    uint64_t offset;
    int64_t blocks_left;
    int error = 0;
  };
  Ticket transfer(const DirectFile& file, bool is_write, std::byte* data, size_t size,
                  uint64_t offset);

  std::map<Ticket, Transfer> transfers_;
  Ticket last_ticket_ = 0;
};

// The two kinds; null where the kernel refuses io_uring.
std::unique_ptr<FileQueue> open_uring_queue(const FileQueueOptions& options);
std::unique_ptr<FileQueue> open_thread_queue(const FileQueueOptions& options);

// Whether what is written below `path` stays in memory (tmpfs, ramfs).
bool is_in_memory(const std::filesystem::path& path);

}  // namespace strata
