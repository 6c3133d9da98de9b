#include "strata/comm/agreement.h"

#include <array>
#include <cstring>

#include <ATen/ATen.h>

namespace strata::comm {

OtherRankFailed::OtherRankFailed(const std::string& what, int rank)
    : CommError("{}: found rank {} failed, expected success on all ranks; see its message", what,
                rank),
      rank_(rank) {}

void all_or_nothing(Group& group, const std::string& what, const std::function<void()>& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  // Value: 1 + the failing rank, so that the others can name one.
  at::Tensor failed = at::full({1}, failure ? group.rank() + 1 : 0, at::kInt);
  try {
    group.all_reduce(failed, Reduction::kMax)->wait();
  } catch (const std::exception&) {
    // A failure amid collectives of `work` leaves the others elsewhere; the cause is what counts.
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  const int failed_rank = failed.item<int>() - 1;
  if (failed_rank >= 0) throw OtherRankFailed(what, failed_rank);
}

namespace {

// What a rank says for itself comes before what it only heard of another.
constexpr int kOwnFailure = 1 << 20;

}  // namespace

std::optional<std::string> shared_failure(Group& group, const std::function<void()>& work) {
  std::string message;
  int code = 0;
  try {
    work();
  } catch (const CommError& error) {
    message = error.what();
    code = group.rank() + 1;
  } catch (const std::exception& error) {
    message = error.what();
    code = kOwnFailure + group.rank() + 1;
  }
  at::Tensor failed = at::full({1}, code, at::kInt);
  try {
    group.all_reduce(failed, Reduction::kMax)->wait();
  } catch (const std::exception&) {
    if (code == 0) throw;
    throw CommError("{}", message);
  }
  if (failed.item<int>() == 0) return std::nullopt;
  const int rank = failed.item<int>() % kOwnFailure - 1;
  constexpr int64_t kCapacity = 4096;
  at::Tensor buffer = at::zeros({kCapacity}, at::kByte);
  std::memcpy(buffer.data_ptr(), message.data(),
              std::min<size_t>(message.size(), static_cast<size_t>(kCapacity) - 1));
  group.broadcast(buffer, rank)->wait();
  const std::string text(static_cast<const char*>(buffer.data_ptr()));
  return group.size() == 1 ? text : fmt::format("rank {}: {}", rank, text);
}

// A copy of `values` that a collective may work on; it is copied back.
static void with_tensor(std::span<double> values, const std::function<void(at::Tensor&)>& work) {
  at::Tensor numbers = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::memcpy(numbers.data_ptr(), values.data(), values.size_bytes());
  work(numbers);
  std::memcpy(values.data(), numbers.data_ptr(), values.size_bytes());
}

void sum_over_ranks(Group& group, std::span<double> values) {
  with_tensor(values, [&](at::Tensor& numbers) { group.all_reduce(numbers)->wait(); });
}

void broadcast_numbers(Group& group, std::span<double> values) {
  with_tensor(values, [&](at::Tensor& numbers) { group.broadcast(numbers, /*root=*/0)->wait(); });
}

std::string broadcast_string(Group& group, const std::string& value) {
  std::array<double, 1> size = {static_cast<double>(value.size())};
  broadcast_numbers(group, size);
  at::Tensor buffer = at::empty({static_cast<int64_t>(size[0])}, at::kByte);
  if (buffer.numel() == 0) return {};
  if (group.rank() == 0) std::memcpy(buffer.data_ptr(), value.data(), value.size());
  group.broadcast(buffer, /*root=*/0)->wait();
  return {static_cast<const char*>(buffer.data_ptr()), static_cast<size_t>(buffer.numel())};
}

}  // namespace strata::comm
