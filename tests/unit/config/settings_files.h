// Settings of flags and of files, and what is said of wrong ones.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/config/resolve.h"

namespace strata::config {

using Flags = std::vector<std::string>;

inline RunConfig config_of(const Flags& flags) { return resolve({.flags = flags}).config; }

inline std::string error_of(const Sources& sources) {
  try {
    resolve(sources);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "no error";
}
inline std::string error_of(const Flags& flags) { return error_of(Sources{.flags = flags}); }

// Files of one test in a folder of their own.
class SettingsFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    return folder_.put(name, text).string();
  }
  strata::testing::TemporaryFolder folder_;
};

}  // namespace strata::config
