// Failures that all ranks have alike, such as a bad row of data, told by one rank of each machine.
#pragma once

#include <functional>
#include <string>

#include "strata/base/error.h"
#include "strata/comm/group.h"

namespace strata::comm {

// What rank 0 fails with, too, to the letter. Who prints leaves it to the first rank of a machine.
class SameFailure : public Error {
 public:
  using Error::Error;
};

// all_or_nothing() (agreement.h) of work without collectives: a rank above 0 that fails with the
// message of rank 0 throws SameFailure with it and its exit code. One collective, whatever happens:
// a rank that hangs or is gone costs one time-out.
void all_or_nothing_told_once(Group& group, const std::string& what,
                              const std::function<void()>& work);

}  // namespace strata::comm
