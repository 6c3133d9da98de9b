// Pages asked of the system many at a time, before they are touched one by one: a fault for each
// costs more than what is done with them. Advice only: where the system knows none of this (Linux
// before 5.14), pages come with their first touch. Never: giving back (file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace strata {

// Those of a mapped file that are about to be read.
void map_pages(std::span<const std::byte> mapped);

// Memory of this process that is about to be written.
void take_pages(std::span<const uint8_t> memory);

}  // namespace strata
