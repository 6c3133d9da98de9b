// Disks that trouble a save at one place. Owns: nothing.
#pragma once

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "strata/base/file_system.h"

namespace strata::testing {

// `latest` cannot be replaced, as on a disk that fills up when the checkpoint is in its place.
class RefusesLatest : public FileSystem {
 public:
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return refuses && to.filename() == "latest" ? ENOSPC : FileSystem::rename(from, to);
  }

  bool refuses = true;
};

// The first file takes three seconds: longer than a group of a test waits.
class SlowDisk : public FileSystem {
 public:
  explicit SlowDisk(bool is_slow) : is_slow_(is_slow) {}
  int create(const std::filesystem::path& path) override {
    if (std::exchange(is_slow_, false)) std::this_thread::sleep_for(std::chrono::seconds(3));
    return FileSystem::create(path);
  }

 private:
  bool is_slow_;
};

}  // namespace strata::testing
