// Oracle: docs/guide/settings.md in the repository, which must be what `strata config docs` prints.
#include <gtest/gtest.h>

#include "strata/base/file.h"
#include "strata/config/describe.h"

namespace strata::config {
namespace {

TEST(SettingsPage, IsUpToDate) {
  EXPECT_EQ(read_file(STRATA_SOURCE_DIR "/docs/guide/settings.md"), settings_page())
      << "run: build/release/strata config docs > docs/guide/settings.md";
}

}  // namespace
}  // namespace strata::config
