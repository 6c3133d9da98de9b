// A small file that is made in a folder to see what can be done there, and goes with the scope.
// Never: what is tried with it.
#pragma once

#include <filesystem>
#include <string>

#include "strata/base/descriptor.h"

namespace strata {

class ProbeFile {
 public:
  // IoError where no file can be made.
  explicit ProbeFile(const std::filesystem::path& folder);
  ~ProbeFile();
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  int get() const { return file_.get(); }

 private:
  std::string path_;
  Descriptor file_;
};

// Removes those that killed processes left in a folder. One that is in use goes on working: it is
// used by its number. Errors: none; what cannot be removed stays.
void remove_left_probes(const std::filesystem::path& folder);

}  // namespace strata
