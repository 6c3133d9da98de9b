// A second queue of work on a device, beside the one that computes, and marks by which queues wait
// for each other. On devices without streams (CPU, meta) all of it does nothing. Goes through
// libtorch's device-neutral API. Owns: the queue. Never: what is enqueued.
#pragma once

#include <optional>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace strata {

// A point in a queue.
class StreamMark {
 public:
  // What the current stream of `device` has by now.
  static StreamMark now(at::Device device) {
    StreamMark mark;
    if (!device.is_cuda()) return mark;
    mark.event_.emplace(device.type());
    mark.event_->record(at::accelerator::getCurrentStream(device.index()));
    mark.device_ = device;
    return mark;
  }
  // The current stream goes on after it; the host does not wait.
  void hold_up_stream() const {
    if (event_) event_->block(at::accelerator::getCurrentStream(device_.index()));
  }
  void wait_on_host() const {
    if (event_) event_->synchronize();
  }

 private:
  mutable std::optional<c10::Event> event_;
  at::Device device_ = at::kCPU;
};

class SideStream {
 public:
  explicit SideStream(at::Device device) : device_(device) {
    if (!device.is_cuda()) return;
    stream_ = c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }

  // Until its end, what is enqueued goes on the side stream, after everything that the caller's
  // stream had when it began.
  class Scope {
   public:
    explicit Scope(const SideStream& side) {
      if (!side.stream_) return;
      const StreamMark begun = StreamMark::now(side.device_);
      guard_.emplace(*side.stream_);
      begun.hold_up_stream();
    }

   private:
    std::optional<c10::StreamGuard> guard_;
  };

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace strata
