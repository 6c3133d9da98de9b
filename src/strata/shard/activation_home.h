// Where inputs of recomputed blocks rest between their forward and their backward pass when that is
// not the memory in which blocks compute: pinned host memory with a GPU, or files. Owns: that
// memory, the files and what is on its way. Never: which blocks, nor when; the schedule has that.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "strata/base/file_queue.h"
#include "strata/libtorch/side_stream.h"
#include "strata/shard/home_file.h"

namespace strata::shard {

struct ActivationHomeOptions {
  enum class Place {
    kWhereComputed,  // nothing is moved
    kHost,           // host memory, with a GPU pinned
    kFiles,          // beside a CPU
  };
  Place place = Place::kWhereComputed;
  FileHomeOptions files = {};   // of kFiles; a plan has no folder
  uint64_t reserved_bytes = 0;  // of one input: room in the files that is taken on start
};

// What `num_blocks` inputs take up in files from the start on.
uint64_t activation_file_bytes(size_t num_blocks, uint64_t reserved_bytes);

// A block's input goes with send() and comes back with fetch() and take(), all three without
// waiting for the block that computes meanwhile. One that is larger than any before gets more room.
// Stream: copies to and from the host run on a stream of their own, ordered against the caller's.
// Memory: on the host, of each block its largest input (a quarter more where that has grown); for
// files two buffers of the largest.
// Threads: one. Errors: IoError when the disk has no room, on start or for a larger input.
class ActivationHome {
 public:
  // `blocks`: those whose inputs will be sent.
  ActivationHome(at::Device device, const std::vector<int>& blocks,
                 const ActivationHomeOptions& options);
  // Waits for transfers.
  ~ActivationHome();
  ActivationHome(const ActivationHome&) = delete;
  ActivationHome& operator=(const ActivationHome&) = delete;

  // Requires: `input` is not written to until the next send() or fetch().
  void send(int block, const at::Tensor& input);
  bool holds(int block) const;
  // Starts to bring it back. Requires: holds().
  void fetch(int block);
  // What was sent, valid until the next take() or send(). Requires: fetch() before.
  at::Tensor take(int block);

 private:
  // The input of one block.
  struct Resting {
    std::vector<int64_t> shape;  // of what it holds
    at::ScalarType type = at::kFloat;
    bool is_held = false;
    at::Tensor host;  // bytes: at least of the largest so far
    std::unique_ptr<DirectFile> file;
    // The input on its way back.
    at::Tensor back;
    StreamMark arrived;
    std::optional<FileQueue::Ticket> reading;

    int64_t numel() const;
    uint64_t size_bytes() const;
    at::Tensor host_elements() const;  // of what it holds
  };

  bool is_imagined() const { return device_.is_meta(); }
  Resting& resting(int block);
  void make_room(Resting& resting, int block);
  void make_host_room(Resting& resting);
  at::Tensor take_buffer(uint64_t size_bytes);
  // What was sent before has left: its memory may be used again.
  void settle();

  at::Device device_;
  ActivationHomeOptions options_;
  std::vector<std::unique_ptr<Resting>> blocks_;  // by block; null: its input is never sent
  SideStream stream_;
  struct Leaving {
    at::Tensor tensor;  // what is being read: the input, or the buffer that has a copy of it
    StreamMark left;
    std::optional<FileQueue::Ticket> writing;
  };
  std::optional<Leaving> leaving_;
  std::vector<at::Tensor> free_;      // buffers for transfers to and from files
  at::Tensor lent_;                   // the one that take() gave a view of
  std::unique_ptr<FileQueue> queue_;  // last: drained first
};

}  // namespace strata::shard
