#include "strata/comm/agreement.h"

#include "strata/base/error.h"

namespace strata::comm {

void all_or_nothing(Group& group, const std::string& what, const std::function<void()>& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  // Value: 1 + the failing rank, so that the others can name one.
  at::Tensor failed = at::full({1}, failure ? group.rank() + 1 : 0, at::kInt);
  group.all_reduce(failed, Reduction::kMax)->wait();
  if (failure) std::rethrow_exception(failure);
  const int failed_rank = failed.item<int>() - 1;
  if (failed_rank >= 0) {
    throw CommError("{}: found rank {} failed, expected success on all ranks; see its message",
                    what, failed_rank);
  }
}

std::string broadcast_string(Group& group, const std::string& value) {
  constexpr int64_t kCapacity = 4096;
  if (static_cast<int64_t>(value.size()) >= kCapacity) {
    throw InternalError(
        "broadcast: found a string of {} bytes, expected less than {}; report this as "
        "a bug",
        value.size(), kCapacity);
  }
  at::Tensor buffer = at::zeros({kCapacity}, at::kByte);
  if (group.rank() == 0) std::memcpy(buffer.data_ptr(), value.data(), value.size());
  group.broadcast(buffer, /*root=*/0)->wait();
  return std::string(static_cast<const char*>(buffer.data_ptr()));
}

}  // namespace strata::comm
