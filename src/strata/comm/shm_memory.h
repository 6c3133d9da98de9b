// How a rank's shared memory is laid out, made and mapped. Never: who else maps it.
#pragma once

#include <cstddef>

#include "strata/base/descriptor.h"
#include "strata/comm/shm_link.h"

namespace strata::comm {

inline constexpr size_t kShmHeadBytes = 4096;
inline constexpr size_t kShmBytes = kShmHeadBytes + 2 * ShmLink::kHalfBytes;
static_assert(sizeof(ShmHead) <= kShmHeadBytes);

// Anonymous memory of kShmBytes that can be neither grown nor cut. Negative: the system refused,
// errno says why.
Descriptor make_shm_memory();

// Null: the system refused.
std::byte* map_shm_memory(const Descriptor& memory);

}  // namespace strata::comm
