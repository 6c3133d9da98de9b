#include "strata/comm/told_once.h"

#include <array>

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
    all_or_nothing(group, what, [&] {
      try {
        work();
      } catch (const Error& error) {
        message = error.what();
        exit_code = error.exit_code();
        throw;
      }
    });
    return;
  } catch (...) {
    failure = std::current_exception();
  }
  std::array<double, 1> of_rank_0 = {mark_of(message)};
  try {
    broadcast_numbers(group, of_rank_0);
  } catch (const std::exception&) {
    std::rethrow_exception(failure);  // a rank is gone; the cause is what counts
  }
  if (group.rank() > 0 && !message.empty() && of_rank_0[0] == mark_of(message)) {
    throw SameFailure(message, exit_code);
  }
  std::rethrow_exception(failure);
}

}  // namespace strata::comm
