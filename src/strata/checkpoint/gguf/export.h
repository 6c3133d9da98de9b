// A model as a GGUF file, which llama.cpp, Ollama and LM Studio run. Owns: the file as a whole: its
// general keys, and that it appears complete or not at all. Never: families, tokenizers, tensors
// (the other files of this folder).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/hf/formats/gguf_type.h"

namespace strata::checkpoint {

struct GgufOptions {
  // The type of matrices; no value: that of the state's weights.
  std::optional<hf::GgufType> type = {};
  FileSystem* files = &real_file_system();
};

// Writes `out`, which must not exist; it appears complete or not at all, and only when it was read
// back as it was written. Returns what somebody should know, a line each. Memory: the largest
// weight where the state does not map it, and the vocabulary.
// Errors: ConfigError for a state that is no whole model with plain weights and a tokenizer, and
// those of describe_family(), describe_tokenizer() and plan_tensors(); FormatError, IoError.
std::vector<std::string> convert_to_gguf(SavedState& state, const std::filesystem::path& out,
                                         const GgufOptions& options);

}  // namespace strata::checkpoint
