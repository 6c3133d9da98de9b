// Flat arrays that are stored in one file: the third kind of home beside device and host memory.
// Owns: the file, its map and its queue of transfers. Never: which arrays there are (UnitStore,
// optim/), nor when they are read.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/base/file_queue.h"

namespace strata::shard {

// A place in a HomeFile; starts at a multiple of kDirectAlignment and owns its last block.
struct FileRegion {
  uint64_t offset_bytes = 0;
  int64_t numel = 0;
  at::ScalarType type = at::kFloat;
};

// Where files rest and how they are moved.
struct FileHomeOptions {
  std::filesystem::path folder;  // empty: nothing is stored in files
  FileQueueOptions queue = {};
  bool is_on() const { return !folder.empty(); }
};

// Uninitialised memory that direct transfers accept.
at::Tensor aligned_buffer(int64_t numel, at::ScalarType type);

// Two ways to the same bytes. Transfers pass the page cache and overlap with computing: for what is
// done every step. The mapped view is an ordinary tensor: for loading, saving and whoever does not
// know that the array rests in a file. A view must not be used while a transfer of the same region
// is in flight; apart from that the kernel keeps both alike.
// Memory: pages of the view are the page cache's, which the kernel takes back at need.
// Threads: one.
class HomeFile {
 public:
  using Ticket = FileQueue::Ticket;

  // Bytes that an array takes up in a file.
  static uint64_t size_bytes(int64_t numel, at::ScalarType type);

  // Creates FOLDER/NAME with room for `capacity_bytes`. Throws IoError when the disk has not.
  HomeFile(const FileHomeOptions& options, const std::string& name, uint64_t capacity_bytes);
  ~HomeFile();
  HomeFile(const HomeFile&) = delete;
  HomeFile& operator=(const HomeFile&) = delete;

  // The next region; its content is zeros. Requires: room for it.
  FileRegion add(int64_t numel, at::ScalarType type);
  // [numel]; stays valid as long as any tensor views it.
  at::Tensor view(const FileRegion& region) const;

  // Start to move elements [begin, begin + buffer.numel()). Requires: `buffer` from
  // aligned_buffer(); `begin` at a multiple of kDirectAlignment bytes, and the end too unless it is
  // the region's.
  Ticket read(const FileRegion& region, int64_t begin, const at::Tensor& buffer);
  Ticket write(const FileRegion& region, int64_t begin, const at::Tensor& buffer);
  void wait(Ticket ticket) { queue_->wait(ticket); }
  void drain() noexcept { queue_->drain(); }

  // Gives the pages of views back to the kernel; their content stays.
  void forget_pages();

  const DirectFile& file() const { return file_; }
  std::string transport() const { return queue_->name(); }

 private:
  struct Mapping;

  DirectFile file_;
  std::shared_ptr<Mapping> mapping_;
  uint64_t used_bytes_ = 0;
  std::unique_ptr<FileQueue> queue_;
};

}  // namespace strata::shard
