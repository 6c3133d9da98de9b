#include "strata/shard/host_gradients.h"

#include <utility>

namespace strata::shard {

void HostGradients::add_arrived() {
  if (!arriving_) return;
  arriving_->arrived.wait_on_host();
  arriving_->home.add_(arriving_->staged);
  arriving_.reset();
}

void HostGradients::send(const at::Tensor& home, at::Tensor buffer, bool overwrite) {
  // A buffer whose copy is under way may be used again after it.
  if (leaving_) {
    leaving_->left.hold_up_stream();
    pool_.give_back(std::move(leaving_->buffer));
    leaving_.reset();
  }
  // The host adds up, a unit after the copies: it waits for none that has just begun.
  add_arrived();
  if (!overwrite && !staging_.defined()) staging_ = make_staging_();
  const at::Tensor destination = overwrite ? home : staging_.narrow(0, 0, home.numel());
  const SideStream::Scope beside(stream_);
  destination.copy_(buffer, /*non_blocking=*/true);
  leaving_ = {std::move(buffer), StreamMark::now(device_)};
  if (!overwrite) arriving_ = {home, destination, StreamMark::now(device_)};
}

void HostGradients::finish() {
  if (leaving_) {
    leaving_->left.wait_on_host();
    pool_.give_back(std::move(leaving_->buffer));
    leaving_.reset();
  }
  add_arrived();
}

}  // namespace strata::shard
