// What a file's name says about its content. Never reads the file.
#pragma once

#include <filesystem>
#include <string>

namespace strata::data {

struct FileFormat {
  std::string extension;       // ".jsonl", ".csv", ...; empty: none that is read
  bool is_compressed = false;  // .gz or .zst after it
};
FileFormat file_format(const std::filesystem::path& path);

}  // namespace strata::data
