// A GGUF file that appears under its name complete and read back, or not at all. Owns: the file
// beside it until then. Never: what the keys and tensors are.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/hf/formats/gguf.h"

namespace strata::checkpoint {

using ByteSink = std::function<void(std::span<const std::byte>)>;

struct GgufContent {
  hf::GgufMetadata metadata = {};
  std::vector<hf::GgufTensor> tensors = {};
  // Hands over the bytes of a tensor of these, in parts; called once for each, in their order.
  std::function<void(size_t place, const ByteSink& sink)> write = {};
};

// What a file calls itself: the name of the folder, of a checkpoint that of its run's.
std::string gguf_name(const std::filesystem::path& folder);

// Throws ConfigError unless `out` names a file and nothing is there.
void require_new_file(const std::filesystem::path& out);

// Removes first what a killed process left of the same file, and returns what was removed, a line
// each. `source`: what the content is of, for messages. Errors: IoError, those of `write`, and that
// of require_new_file() for what came there meanwhile. Memory: what `write` takes.
std::vector<std::string> write_proved(const std::filesystem::path& out, const GgufContent& content,
                                      const std::string& source, FileSystem& files);

}  // namespace strata::checkpoint
