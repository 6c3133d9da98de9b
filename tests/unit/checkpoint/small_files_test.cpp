// Oracle: what was written, and XXH3-64 of it.
#include "strata/checkpoint/small_files.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/file.h"

namespace strata::checkpoint {
namespace {

TEST(SmallFiles, LieInFoldersBelowAndInTheManifest) {
  const strata::testing::TemporaryFolder folder;
  const SmallFiles written{{"progress.json", "{}\n"},
                           {"additional_chat_templates/tools.jinja", "x"}};
  Manifest manifest;
  write_small_files(folder.path(), written, manifest, real_file_system());
  ASSERT_EQ(manifest.files.size(), written.size());
  for (const auto& [name, content] : written) {
    EXPECT_EQ(read_file(folder.path() / name), content);
    EXPECT_EQ(manifest.files.at(name).size_bytes, content.size());
    EXPECT_EQ(manifest.files.at(name).checksum, checksum(content.data(), content.size()));
  }
}

}  // namespace
}  // namespace strata::checkpoint
