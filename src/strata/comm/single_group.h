// The group of one rank: every collective is a copy or nothing. Owns: nothing.
#pragma once

#include "strata/comm/group.h"

namespace strata::comm {

std::unique_ptr<Group> make_single_group();

// A Work of an operation that has already completed.
std::unique_ptr<Work> completed_work();

}  // namespace strata::comm
