// What is told of a file of the Hub's cache while another process downloads it. Never: the lock
// itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "strata/hf/hub/download.h"

namespace strata::hf {

struct AwaitedBlob {
  std::string repository;      // org/name
  std::string name;            // of the file
  int64_t size = 0;            // 0: unknown
  std::filesystem::path lock;  // that the other process holds
  std::filesystem::path part;  // what has come of it
};

// Threads: one.
class BlobWait {
 public:
  using Clock = std::chrono::steady_clock;

  // `first_word`: of waiting, after which a line says for whom; another one after twice as long.
  BlobWait(AwaitedBlob blob, const DownloadProgress& progress,
           Clock::duration first_word = std::chrono::seconds(10));

  // To be called now and then.
  void look();

 private:
  void say(int64_t waited_s, int64_t bytes) const;

  AwaitedBlob blob_;
  const DownloadProgress& progress_;
  Clock::time_point start_ = Clock::now();
  Clock::duration next_word_;
  int64_t shown_bytes_ = 0;
};

}  // namespace strata::hf
