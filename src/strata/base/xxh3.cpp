// One state serves both lengths: in xxhash.h the 128-bit functions that fill it are the 64-bit
// ones.
#include "strata/base/xxh3.h"

#include <fmt/format.h>

#include <new>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
// The widest instructions that the processor has; the library alone takes those that all have.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace strata {

void Xxh3::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Xxh3::Xxh3() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void Xxh3::reset() { XXH3_64bits_reset(state_.get()); }

void Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Xxh3::digest_64() const { return XXH3_64bits_digest(state_.get()); }

std::string Xxh3::text_64() const { return fmt::format("{:016x}", digest_64()); }

std::string Xxh3::text_128() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace strata
