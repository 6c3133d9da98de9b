// Files as they were before they were read, to tell whether somebody has written to them since.
// Never reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace strata::data {

class SeenFiles {
 public:
  explicit SeenFiles(std::span<const std::vector<std::filesystem::path>> lists);

  // Errors: IoError for a file that has another size or time of change now, or is gone: what was
  // read of it may be parts of two states. Not asked for its inode, which some file systems over a
  // network number anew at any time.
  void require_unchanged() const;

 private:
  struct State {
    int64_t size = -1;  // no file
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const State&) const = default;
  };
  static State look_at(const std::string& path);

  std::map<std::string, State> files_;
};

}  // namespace strata::data
