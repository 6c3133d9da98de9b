#include "strata/comm/told_once.h"

#include <exception>

#include <ATen/ops/full.h>

#include "strata/comm/agreement.h"

namespace strata::comm {
namespace {

// A number that a double holds exactly; 0 stands for no failure.
double mark_of(const std::string& message) {
  if (message.empty()) return 0;
  constexpr size_t kBits = (size_t{1} << 48) - 1;
  return static_cast<double>((std::hash<std::string>{}(message)&kBits) | 1);
}

}  // namespace

void all_or_nothing_told_once(Group& group, const std::string& what,
                              const std::function<void()>& work) {
  std::string message;
  int exit_code = 1;
  std::exception_ptr failure;
  try {
    work();
  } catch (const Error& error) {
    message = error.what();
    exit_code = error.exit_code();
    failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  // 1 + the failing rank, and rank 0's mark: both in one, so that nobody waits again in a group in
  // which a rank does not answer.
  const double of_rank_0 = group.rank() == 0 ? mark_of(message) : 0;
  at::Tensor told = at::full({2}, failure ? group.rank() + 1 : 0, at::kDouble);
  told[1] = of_rank_0;
  try {
    group.all_reduce(told, Reduction::kMax)->wait();
  } catch (const std::exception&) {
    if (!failure) throw;
    std::rethrow_exception(failure);  // a rank is gone; the cause is what counts
  }
  const auto failed_rank = static_cast<int>(told[0].item<double>()) - 1;
  if (!failure && failed_rank < 0) return;
  if (!failure) throw OtherRankFailed(what, failed_rank);
  if (group.rank() > 0 && !message.empty() && told[1].item<double>() == mark_of(message)) {
    throw SameFailure(message, exit_code);
  }
  std::rethrow_exception(failure);
}

}  // namespace strata::comm
