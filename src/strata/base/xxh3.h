// XXH3 of bytes that come in parts. Owns: the state. Never: what is hashed, or against what.
// Source: xxhash.com, xxhash.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace strata {

// The same bytes give the same digest however they are cut, with seed 0.
// Errors: std::bad_alloc. Threads: one per object.
class Xxh3 {
 public:
  Xxh3();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }

  // As if none had come.
  void reset();

  // Of all bytes so far; more may come.
  uint64_t digest_64() const;
  // In hexadecimal digits: 16 and 32 of them.
  std::string text_64() const;
  std::string text_128() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace strata
