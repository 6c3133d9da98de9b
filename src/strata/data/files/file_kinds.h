// Which of a split's files are read where they are of several kinds. Knows names only.
#pragma once

#include <filesystem>
#include <vector>

namespace strata::data {

struct FilesOfKind {
  std::vector<std::filesystem::path> kept, left_out;  // in their order
};

// A data set is of one kind, as for `datasets`: JSON (.jsonl, .json), tables (.csv, .tsv), text,
// parquet or Arrow. It is that of the most common ending; of several those of parquet, Arrow and
// JSON come before tables and texts, and files that are called metadata last.
// Requires: every file is in a format that is read (file_format.h).
FilesOfKind choose_kind(std::vector<std::filesystem::path> files);

}  // namespace strata::data
