#include "strata/checkpoint/small_files.h"

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::checkpoint {

namespace fs = std::filesystem;

void write_small_files(const fs::path& folder, const SmallFiles& small_files, Manifest& manifest,
                       FileSystem& files) {
  for (const auto& [name, content] : small_files) {
    if (const fs::path below = fs::path(name).parent_path(); !below.empty()) {
      if (const int error = files.make_folder(folder / below)) {
        throw IoError("{}: found {} when creating it, expected room for it; free space",
                      (folder / below).string(), errno_text(error));
      }
    }
    write_file_atomically(folder / name, content, files);
    manifest.files[name] = {content.size(), checksum(content.data(), content.size())};
  }
}

}  // namespace strata::checkpoint
