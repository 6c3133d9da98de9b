#include "strata/shard/activation_home.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/shard/pinned_memory.h"

namespace strata::shard {
namespace {

using Place = ActivationHomeOptions::Place;

// The part of a buffer where direct transfers may begin.
at::Tensor aligned_part(const at::Tensor& buffer) {
  if (buffer.is_meta()) return buffer;
  const auto address = reinterpret_cast<uintptr_t>(buffer.data_ptr());
  const auto skipped = static_cast<int64_t>(aligned_up(address) - address);
  return buffer.narrow(0, skipped, buffer.numel() - skipped);
}

at::Tensor elements_of(const at::Tensor& buffer, at::ScalarType type, int64_t numel) {
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  return aligned_part(buffer).narrow(0, 0, bytes).view(type);
}

std::span<std::byte> blocks_of(const at::Tensor& buffer, uint64_t size_bytes) {
  return {static_cast<std::byte*>(aligned_part(buffer).data_ptr()), aligned_up(size_bytes)};
}

}  // namespace

uint64_t activation_file_bytes(size_t num_blocks, uint64_t reserved_bytes) {
  return num_blocks * aligned_up(reserved_bytes);
}

int64_t ActivationHome::Resting::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

uint64_t ActivationHome::Resting::size_bytes() const {
  return static_cast<uint64_t>(numel()) * c10::elementSize(type);
}

at::Tensor ActivationHome::Resting::host_elements() const {
  return host.narrow(0, 0, static_cast<int64_t>(size_bytes())).view(type);
}

ActivationHome::ActivationHome(at::Device device, const std::vector<int>& blocks,
                               const ActivationHomeOptions& options)
    : device_(device), options_(options), stream_(device) {
  if (options.place == Place::kWhereComputed) {
    throw InternalError(
        "activations: found inputs to be moved and no place for them, expected one; report this as "
        "a bug");
  }
  for (int block : blocks) {
    const auto index = static_cast<size_t>(block);
    if (blocks_.size() <= index) blocks_.resize(index + 1);
    blocks_[index] = std::make_unique<Resting>();
  }
  if (options.place != Place::kFiles || is_imagined()) return;
  queue_ = FileQueue::open(options.files.queue);
  for (int block : blocks) {
    Resting& one = resting(block);
    one.shape = {static_cast<int64_t>(options.reserved_bytes / c10::elementSize(one.type))};
    make_room(one, block);
  }
}

ActivationHome::~ActivationHome() {
  if (queue_) queue_->drain();
}

ActivationHome::Resting& ActivationHome::resting(int block) {
  const auto index = static_cast<size_t>(block);
  if (index < blocks_.size() && blocks_[index]) return *blocks_[index];
  throw InternalError(
      "activations: found block {}, expected one whose input rests elsewhere; report this as a bug",
      block);
}

bool ActivationHome::holds(int block) const {
  const auto index = static_cast<size_t>(block);
  return index < blocks_.size() && blocks_[index] && blocks_[index]->is_held;
}

void ActivationHome::make_host_room(Resting& resting) {
  auto bytes = static_cast<int64_t>(resting.size_bytes());
  const bool is_larger = resting.host.defined() && resting.host.numel() < bytes;
  if (resting.host.defined() && !is_larger) return;
  // To lock memory takes long, and lengths that grow a little each time are many.
  if (is_larger) bytes = std::max(bytes, resting.host.numel() + resting.host.numel() / 4);
  const MemoryScope scope(MemoryKind::kKeptInputs);
  if constexpr (kHasCuda) {
    if (device_.is_cuda()) {
      // Copies to and from what is given back must be over.
      if (is_larger) StreamMark::now(device_).wait_on_host();
      resting.host = at::Tensor();
      resting.host = pinned_zeros(bytes, at::kByte);
      return;
    }
  }
  const auto where = is_imagined() ? at::kMeta : at::kCPU;
  resting.host = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(where));
}

// The only thing of a plan for files is that they hold as much.
void ActivationHome::make_room(Resting& resting, int block) {
  if (options_.place == Place::kHost || is_imagined()) return make_host_room(resting);
  const uint64_t bytes = aligned_up(resting.size_bytes());
  if (resting.file && resting.file->size_bytes() >= bytes) return;
  const std::filesystem::path path = options_.files.folder / fmt::format("input-{}", block);
  resting.file.reset();
  std::filesystem::remove(path);
  resting.file = std::make_unique<DirectFile>(path, bytes);
}

at::Tensor ActivationHome::take_buffer(uint64_t size_bytes) {
  const auto needed = static_cast<int64_t>(aligned_up(size_bytes) + kDirectAlignment);
  const auto fitting = std::ranges::find_if(
      free_, [&](const at::Tensor& buffer) { return buffer.numel() >= needed; });
  if (fitting != free_.end()) {
    at::Tensor buffer = std::move(*fitting);
    free_.erase(fitting);
    return buffer;
  }
  // Inputs have grown: the smaller one would not be asked for again.
  if (!free_.empty()) free_.pop_back();
  return at::empty({needed}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void ActivationHome::settle() {
  if (!leaving_) return;
  Leaving leaving = std::move(*leaving_);
  leaving_.reset();
  leaving.left.hold_up_stream();
  if (leaving.writing) queue_->wait(*leaving.writing);
  if (options_.place == Place::kFiles) free_.push_back(std::move(leaving.tensor));
}

void ActivationHome::send(int block, const at::Tensor& input) {
  settle();
  if (lent_.defined()) free_.push_back(std::move(lent_));
  lent_ = at::Tensor();
  Resting& one = resting(block);
  one.shape = input.sizes().vec();
  one.type = input.scalar_type();
  one.is_held = true;
  make_room(one, block);
  const at::Tensor flat = input.detach().reshape(-1);
  if (options_.place == Place::kHost) {
    const SideStream::Scope beside(stream_);
    one.host_elements().copy_(flat, /*non_blocking=*/true);
    leaving_ = Leaving{flat, StreamMark::now(device_), {}};
    return;
  }
  const at::Tensor buffer = take_buffer(one.size_bytes());
  elements_of(buffer, one.type, one.numel()).copy_(flat);
  leaving_ = Leaving{buffer, {}, {}};
  if (!is_imagined()) {
    leaving_->writing = queue_->write(*one.file, blocks_of(buffer, one.size_bytes()), 0);
  }
}

void ActivationHome::fetch(int block) {
  settle();
  Resting& one = resting(block);
  if (options_.place == Place::kHost) {
    // Of the stream that computes, which also gives it back.
    one.back = at::empty(one.shape, at::TensorOptions().dtype(one.type).device(device_));
    const SideStream::Scope beside(stream_);
    one.back.copy_(one.host_elements().view(one.shape), /*non_blocking=*/true);
    one.arrived = StreamMark::now(device_);
    return;
  }
  one.back = take_buffer(one.size_bytes());
  if (!is_imagined()) {
    one.reading = queue_->read(*one.file, blocks_of(one.back, one.size_bytes()), 0);
  }
}

at::Tensor ActivationHome::take(int block) {
  Resting& one = resting(block);
  one.is_held = false;
  at::Tensor back = std::move(one.back);
  one.back = at::Tensor();
  if (options_.place == Place::kHost) {
    one.arrived.hold_up_stream();
    return back;
  }
  if (one.reading) queue_->wait(*std::exchange(one.reading, std::nullopt));
  if (lent_.defined()) free_.push_back(std::move(lent_));
  lent_ = back;
  return elements_of(back, one.type, one.numel()).view(one.shape);
}

}  // namespace strata::shard
