// What both kinds of queue share: cutting transfers into requests and settling their results.
#include "strata/base/file_queue.h"

#include <algorithm>
#include <cerrno>

#include "strata/base/activity_timer.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::unique_ptr<FileQueue> FileQueue::open(const FileQueueOptions& options) {
  using Backend = FileQueueOptions::Backend;
  if (options.backend == Backend::kThreads) return open_thread_queue(options);
  if (auto queue = open_uring_queue(options)) return queue;
  if (options.backend == Backend::kAutomatic) return open_thread_queue(options);
  throw IoError(
      "io_uring: found a kernel that refuses it, expected one that offers it; use threads");
}

FileQueue::Ticket FileQueue::read(const DirectFile& file, std::span<std::byte> data,
                                  uint64_t offset) {
  return transfer(file, /*is_write=*/false, data.data(), data.size(), offset);
}

FileQueue::Ticket FileQueue::write(const DirectFile& file, std::span<const std::byte> data,
                                   uint64_t offset) {
  return transfer(file, /*is_write=*/true, const_cast<std::byte*>(data.data()), data.size(),
                  offset);
}

FileQueue::Ticket FileQueue::transfer(const DirectFile& file, bool is_write, std::byte* data,
                                      size_t size, uint64_t offset) {
  if (offset + size > file.size_bytes()) {
    throw InternalError(
        "{}: found a transfer of bytes {} to {}, expected at most {}; report this "
        "as a bug",
        file.path().string(), offset, offset + size, file.size_bytes());
  }
  const Ticket ticket = ++last_ticket_;
  const size_t share =
      (size + static_cast<size_t>(options_.depth) - 1) / static_cast<size_t>(options_.depth);
  const size_t block =
      round_up(std::max({share, options_.block_bytes, size_t{1}}), kDirectAlignment);
  const auto num_blocks = static_cast<int64_t>((size + block - 1) / block);
  transfers_.emplace(ticket, Transfer{file.path(), is_write, size, offset, num_blocks});
  int64_t started = 0;
  try {
    for (size_t at = 0; at < size; at += block, ++started) {
      start({ticket, file.descriptor(), is_write, data + at, std::min(block, size - at),
             offset + at});
    }
  } catch (...) {
    // Nobody will complete the others; drain() must not wait for them.
    transfers_.at(ticket).blocks_left -= num_blocks - started;
    throw;
  }
  return ticket;
}

void FileQueue::settle(const Completion& completion) {
  Transfer& transfer = transfers_.at(completion.block.ticket);
  const int64_t result = completion.result;
  const bool is_interrupted = result == -EINTR || result == -EAGAIN;
  if (transfer.error == 0 && (is_interrupted || result > 0)) {
    Block rest = completion.block;
    const size_t done = is_interrupted ? 0 : static_cast<size_t>(result);
    rest.data += done;
    rest.size -= done;
    rest.offset += done;
    if (rest.size > 0) {
      try {
        return start(rest);
      } catch (...) {
        --transfer.blocks_left;
        throw;
      }
    }
  } else if (transfer.error == 0) {
    // Nothing transferred: the file is shorter than it was, or the disk takes no more.
    transfer.error = result < 0 ? static_cast<int>(-result) : (transfer.is_write ? ENOSPC : EIO);
  }
  --transfer.blocks_left;
}

void FileQueue::wait(Ticket ticket) {
  const ActivityTimer timer(Activity::kFiles);
  const auto found = transfers_.find(ticket);
  if (found == transfers_.end()) {
    throw InternalError(
        "file queue: found a wait for transfer {}, expected one that is in flight; "
        "report this as a bug",
        ticket);
  }
  while (found->second.blocks_left > 0) settle(complete());
  const Transfer transfer = std::move(found->second);
  transfers_.erase(found);
  if (transfer.error == 0) return;
  throw IoError("{}: found {} when {} {} bytes at {}, expected the disk to take part; {}",
                transfer.path.string(), errno_text(transfer.error),
                transfer.is_write ? "writing" : "reading", transfer.size, transfer.offset,
                transfer.error == ENOSPC || transfer.error == EDQUOT || transfer.error == EFBIG
                    ? "free space there or choose another folder, then resume from the last "
                      "checkpoint"
                    : "check the disk, then resume from the last checkpoint");
}

void FileQueue::drain() noexcept {
  // What is not on its way any more is not started again, of whichever transfer it comes next.
  for (auto& [ticket, transfer] : transfers_) transfer.error = ECANCELED;
  try {
    for (auto& [ticket, transfer] : transfers_) {
      while (transfer.blocks_left > 0) settle(complete());
    }
  } catch (...) {
    // complete() fails only where nothing is in flight any more.
  }
  transfers_.clear();
}

}  // namespace strata
