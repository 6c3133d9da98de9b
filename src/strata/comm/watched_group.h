// A group that tells on a status page what this rank waits for. Owns: the group it watches. Never:
// moves data itself.
#pragma once

#include "strata/base/status_page.h"
#include "strata/comm/group.h"

namespace strata::comm {

// `status` must outlive the group and its works.
std::unique_ptr<Group> watch(std::unique_ptr<Group> group, std::string name, Status& status);

}  // namespace strata::comm
