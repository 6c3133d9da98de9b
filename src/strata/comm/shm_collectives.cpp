#include "strata/comm/shm_collectives.h"

#include <algorithm>
#include <cstring>

#include "strata/base/error.h"

namespace strata::comm {
namespace {

constexpr size_t kLine = 64;
// Up to here every rank adds everything itself, which saves one turn of waiting.
constexpr size_t kSmallBytes = size_t{16} << 10;

size_t round_down(size_t value, size_t unit) { return value / unit * unit; }
size_t round_up(size_t value, size_t unit) { return round_down(value + unit - 1, unit); }

}  // namespace

const char* name_of(Collective kind) {
  constexpr const char* kNames[] = {"all-gather", "reduce-scatter", "all-reduce", "broadcast",
                                    "scatter",    "all-to-all",     "barrier"};
  return kNames[static_cast<int>(kind)];
}

ShmCollectives::ShmCollectives(std::unique_ptr<ShmLink> link, std::chrono::milliseconds timeout)
    : link_(std::move(link)),
      timeout_(timeout),
      rank_(link_->rank()),
      size_(link_->size()),
      inputs_(static_cast<size_t>(size_)) {}

void ShmCollectives::run(const ShmRequest& request) {
  request_ = request;
  operation_ = {operation_.number + 1, static_cast<int32_t>(request.kind), request.type,
                request.count};
  switch (request.kind) {
    case Collective::kAllGather:
      return all_gather();
    case Collective::kReduceScatter:
      return reduce_scatter();
    case Collective::kAllReduce:
      return static_cast<size_t>(request.count) * request.element_bytes <= kSmallBytes
                 ? all_reduce_small()
                 : all_reduce();
    case Collective::kBroadcast:
      return broadcast();
    case Collective::kScatter:
      return scatter();
    case Collective::kAllToAll:
      return all_to_all();
    case Collective::kBarrier:
      return barrier();
  }
}

void ShmCollectives::begin_piece() {
  ++piece_;
  const uint64_t previous = last_phase_[piece_ % 2];
  for (int i = 1; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const WaitEnd end = link_->wait(r, link_->head(r).consumed, previous, timeout_);
    if (end != WaitEnd::kReached) fail(end, r);
  }
  link_->head(rank_).operation[piece_ % 2] = operation_;
}

void ShmCollectives::publish() {
  link_->head(rank_).published.store(++phase_, std::memory_order_release);
  link_->ring();
}

void ShmCollectives::consume() {
  last_phase_[piece_ % 2] = phase_;
  link_->head(rank_).consumed.store(phase_, std::memory_order_release);
  link_->ring();
}

void ShmCollectives::await_published(int rank) {
  const WaitEnd end = link_->wait(rank, link_->head(rank).published, phase_, timeout_);
  if (end != WaitEnd::kReached) fail(end, rank);
  const ShmOperation& other = link_->head(rank).operation[piece_ % 2];
  if (other == operation_) return;
  throw CommError(
      "collective {} of rank {}: found {} of {} elements of type {} here and {} of {} elements of "
      "type {} on rank {}, expected the same; report this as a bug",
      operation_.number, link_->world_rank(rank_), name_of(request_.kind), operation_.count,
      operation_.element, name_of(static_cast<Collective>(other.kind)), other.count, other.element,
      link_->world_rank(rank));
}

void ShmCollectives::await_all_published() {
  for (int i = 1; i < size_; ++i) await_published((rank_ + i) % size_);
}

void ShmCollectives::count_received(size_t bytes) {
  received_bytes_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

void ShmCollectives::take(int rank, size_t from, std::byte* to, size_t bytes) {
  std::memcpy(to, link_->half(rank, piece_) + from, bytes);
  if (rank != rank_) count_received(bytes);
}

void ShmCollectives::add_inputs(std::byte* to, size_t bytes) {
  fold_in_rank_order(request_.element, request_.fold, inputs_, to, bytes / request_.element_bytes);
  count_received(bytes * static_cast<size_t>(size_ - 1));
}

void ShmCollectives::fail(WaitEnd end, int rank) {
  const int self = link_->world_rank(rank_);
  const int other = link_->world_rank(rank);
  const char* name = name_of(request_.kind);
  if (end == WaitEnd::kInterrupted) {
    throw CommError("collective {} of rank {}: found the group closed, expected it open", name,
                    self);
  }
  if (end == WaitEnd::kPeerGone) {
    throw CommError(
        "collective {} of rank {}: found rank {} gone, expected every rank to take part; look at "
        "the first failing rank's message",
        name, self, other);
  }
  const ShmHead& head = link_->head(rank);
  throw CommError(
      "collective {} of rank {}: found nothing of rank {} for {} s (it is at collective {} of this "
      "group, this rank at {}), expected every rank to take part; see what rank {} does, or raise "
      "ddp_timeout",
      name, self, other, std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(),
      std::max(head.operation[0].number, head.operation[1].number), operation_.number, other);
}

void ShmCollectives::all_gather() {
  const size_t share = static_cast<size_t>(request_.count) * request_.element_bytes;
  std::byte* own = request_.out + static_cast<size_t>(rank_) * share;
  for (size_t begin = 0; begin < share; begin += ShmLink::kHalfBytes) {
    const size_t bytes = std::min(ShmLink::kHalfBytes, share - begin);
    begin_piece();
    std::memcpy(link_->half(rank_, piece_), request_.in + begin, bytes);
    publish();
    if (own != request_.in) std::memcpy(own + begin, request_.in + begin, bytes);
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      await_published(r);
      take(r, 0, request_.out + static_cast<size_t>(r) * share + begin, bytes);
    }
    consume();
  }
}

// This rank's half: `bytes` from `begin` on of each other rank's share, a part for every rank.
void ShmCollectives::put_parts_for_others(size_t part, size_t share, size_t begin, size_t bytes) {
  for (int i = 1; i < size_; ++i) {
    const auto r = static_cast<size_t>((rank_ + i) % size_);
    std::memcpy(link_->half(rank_, piece_) + r * part, request_.in + r * share + begin, bytes);
  }
}

// Every half holds a part for each rank; a rank adds the parts that are for it.
void ShmCollectives::reduce_scatter() {
  const size_t share = static_cast<size_t>(request_.count) * request_.element_bytes;
  const size_t part = round_down(ShmLink::kHalfBytes / static_cast<size_t>(size_), kLine);
  for (size_t begin = 0; begin < share; begin += part) {
    const size_t bytes = std::min(part, share - begin);
    begin_piece();
    put_parts_for_others(part, share, begin, bytes);
    publish();
    await_all_published();
    const size_t self = static_cast<size_t>(rank_);
    for (int r = 0; r < size_; ++r) {
      inputs_[static_cast<size_t>(r)] = link_->half(r, piece_) + self * part;
    }
    inputs_[self] = request_.in + self * share + begin;
    add_inputs(request_.out + begin, bytes);
    consume();
  }
}

void ShmCollectives::all_reduce_small() {
  if (request_.count == 0) return;
  const size_t bytes = static_cast<size_t>(request_.count) * request_.element_bytes;
  begin_piece();
  std::memcpy(link_->half(rank_, piece_), request_.in, bytes);
  publish();
  await_all_published();
  for (int r = 0; r < size_; ++r) inputs_[static_cast<size_t>(r)] = link_->half(r, piece_);
  add_inputs(request_.out, bytes);
  consume();
}

// Of every piece each rank adds one part, in its own half, where the others then read it.
void ShmCollectives::all_reduce() {
  const size_t total = static_cast<size_t>(request_.count) * request_.element_bytes;
  for (size_t begin = 0; begin < total; begin += ShmLink::kHalfBytes) {
    const size_t bytes = std::min(ShmLink::kHalfBytes, total - begin);
    const size_t part =
        round_up((bytes + static_cast<size_t>(size_) - 1) / static_cast<size_t>(size_), kLine);
    const auto part_begin = [&](int r) { return std::min(static_cast<size_t>(r) * part, bytes); };
    begin_piece();
    std::memcpy(link_->half(rank_, piece_), request_.in + begin, bytes);
    publish();
    await_all_published();
    const size_t own_begin = part_begin(rank_);
    const size_t own_bytes = part_begin(rank_ + 1) - own_begin;
    for (int r = 0; r < size_; ++r) {
      inputs_[static_cast<size_t>(r)] = link_->half(r, piece_) + own_begin;
    }
    add_inputs(link_->half(rank_, piece_) + own_begin, own_bytes);
    publish();
    for (int i = 0; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      if (r != rank_) await_published(r);
      take(r, part_begin(r), request_.out + begin + part_begin(r),
           part_begin(r + 1) - part_begin(r));
    }
    consume();
  }
}

void ShmCollectives::broadcast() {
  const size_t total = static_cast<size_t>(request_.count) * request_.element_bytes;
  for (size_t begin = 0; begin < total; begin += ShmLink::kHalfBytes) {
    const size_t bytes = std::min(ShmLink::kHalfBytes, total - begin);
    begin_piece();
    if (rank_ == request_.root) {
      std::memcpy(link_->half(rank_, piece_), request_.in + begin, bytes);
    }
    publish();
    if (rank_ != request_.root) {
      await_published(request_.root);
      take(request_.root, 0, request_.out + begin, bytes);
    }
    consume();
  }
}

// The root's half holds a part for each other rank.
void ShmCollectives::scatter() {
  const size_t share = static_cast<size_t>(request_.count) * request_.element_bytes;
  const size_t part = round_down(ShmLink::kHalfBytes / static_cast<size_t>(size_), kLine);
  const bool is_root = rank_ == request_.root;
  for (size_t begin = 0; begin < share; begin += part) {
    const size_t bytes = std::min(part, share - begin);
    begin_piece();
    for (int i = 1; is_root && i < size_; ++i) {
      const size_t r = static_cast<size_t>((rank_ + i) % size_);
      std::memcpy(link_->half(rank_, piece_) + r * part, request_.in + r * share + begin, bytes);
    }
    publish();
    if (is_root) {
      const std::byte* own = request_.in + static_cast<size_t>(rank_) * share + begin;
      if (own != request_.out + begin) std::memcpy(request_.out + begin, own, bytes);
    } else {
      await_published(request_.root);
      take(request_.root, static_cast<size_t>(rank_) * part, request_.out + begin, bytes);
    }
    consume();
  }
}

// As the reduce-scatter's halves; nothing is added.
void ShmCollectives::all_to_all() {
  const size_t share = static_cast<size_t>(request_.count) * request_.element_bytes;
  const size_t part = round_down(ShmLink::kHalfBytes / static_cast<size_t>(size_), kLine);
  const auto self = static_cast<size_t>(rank_);
  for (size_t begin = 0; begin < share; begin += part) {
    const size_t bytes = std::min(part, share - begin);
    begin_piece();
    put_parts_for_others(part, share, begin, bytes);
    publish();
    std::memcpy(request_.out + self * share + begin, request_.in + self * share + begin, bytes);
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      await_published(r);
      take(r, self * part, request_.out + static_cast<size_t>(r) * share + begin, bytes);
    }
    consume();
  }
}

void ShmCollectives::barrier() {
  begin_piece();
  publish();
  await_all_published();
  consume();
}

}  // namespace strata::comm
