// The hash of a file's content, which for a large file is remembered together with what the file
// system says of it. Never: what the content is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace strata::data {

struct HashMemory {
  std::filesystem::path folder = {};       // empty: nothing is remembered
  uint64_t smallest = uint64_t{64} << 20;  // bytes of a file whose hash is worth remembering
};

// 32 hexadecimal digits. A remembered hash counts as long as path, device, inode, size and both
// times (of the content's change and of the inode's, which no program can set back) are what they
// were; a file that changed within the last seconds is not remembered, because the clock of a file
// system is coarse. Errors: IoError for the file; a memory that cannot be written or read costs
// only time.
std::string content_hash(const std::filesystem::path& path, const HashMemory& memory = {});

// Those of several files, in their order. Smaller ones are remembered as well, in one note for all,
// where together they have as many bytes as a file that is worth remembering.
std::vector<std::string> content_hashes(std::span<const std::filesystem::path> paths,
                                        const HashMemory& memory = {});

}  // namespace strata::data
