// Requests served by the kernel through io_uring. Owns: the ring.
#include <liburing.h>

#include <cerrno>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/file_queue.h"

namespace strata {
namespace {

// Before 5.6 kernels know the ring but not these two requests.
bool knows_read_and_write(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  const bool knows = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  io_uring_free_probe(probe);
  return knows;
}

class UringQueue final : public FileQueue {
 public:
  // Takes the ring over.
  UringQueue(const FileQueueOptions& options, const io_uring& ring, unsigned entries)
      : FileQueue(options), ring_(ring), requests_(entries) {
    for (unsigned i = 0; i < entries; ++i) free_.push_back(i);
  }

  ~UringQueue() override {
    drain();
    io_uring_queue_exit(&ring_);
  }

  const char* name() const override { return "io_uring"; }

 protected:
  void start(const Block& block) override {
    if (is_broken_) {
      throw IoError(
          "io_uring: found a request that the kernel did not take, so that the queue starts no "
          "more; "
          "check the kernel's log");
    }
    while (free_.empty()) settle(complete());
    const unsigned slot = free_.back();
    free_.pop_back();
    requests_[slot] = block;
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // as many entries as slots: never null
    const auto size = static_cast<unsigned>(std::min(block.size, kLargest));
    if (block.is_write) {
      io_uring_prep_write(entry, block.descriptor, block.data, size, block.offset);
    } else {
      io_uring_prep_read(entry, block.descriptor, block.data, size, block.offset);
    }
    io_uring_sqe_set_data64(entry, slot);
    try {
      submit();
    } catch (...) {
      // The entry stays in the ring: the next submission would send it, when its memory may be
      // gone.
      is_broken_ = true;
      throw;
    }
  }

  Completion complete() override {
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do {
      result = io_uring_wait_cqe(&ring_, &entry);
    } while (result == -EINTR || result == -EAGAIN);
    if (result < 0) {
      throw IoError("io_uring: found {} when waiting, expected a result; check the kernel's log",
                    errno_text(-result));
    }
    const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(entry));
    const Completion completion{requests_[slot], entry->res};
    io_uring_cqe_seen(&ring_, entry);
    free_.push_back(slot);
    return completion;
  }

 private:
  static constexpr size_t kLargest = size_t{1} << 30;  // one request; the rest is continued

  void submit() {
    while (true) {
      const int result = io_uring_submit(&ring_);
      if (result >= 0) return;
      if (result == -EINTR) continue;
      if (result == -EAGAIN || result == -EBUSY) {
        // The kernel is short of memory for requests: results must be fetched first. They are: the
        // entry that could not be submitted stays in the ring.
        if (free_.size() + 1 < requests_.size()) {
          settle(complete());
          continue;
        }
      }
      throw IoError(
          "io_uring: found {} when submitting, expected it to be taken; check the "
          "kernel's log",
          errno_text(-result));
    }
  }

  io_uring ring_;
  std::vector<Block> requests_;
  std::vector<unsigned> free_;
  bool is_broken_ = false;  // a request was not taken; those that were are still completed
};

}  // namespace

std::unique_ptr<FileQueue> open_uring_queue(const FileQueueOptions& options) {
  // Room for several transfers at once; start() waits where it does not suffice.
  const auto entries = static_cast<unsigned>(options.depth) * 8;
  io_uring ring{};
  // Refused by ENOSYS (no io_uring), EPERM or EACCES (seccomp, sysctl), ENOMEM (locked memory).
  if (io_uring_queue_init(entries, &ring, 0) < 0) return nullptr;
  if (!knows_read_and_write(ring)) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<UringQueue>(options, ring, entries);
}

}  // namespace strata
