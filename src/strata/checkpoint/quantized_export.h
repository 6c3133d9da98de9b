// A model folder with the weights of its linear layers as bitsandbytes stores them. Owns: the
// tensors that a quantised weight becomes, and config.json's quantization_config. Never: the
// arithmetic (ops/quant), nor which layers are quantised (models/quantization.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/models/quantization.h"

namespace strata::checkpoint {

struct QuantizedExportOptions {
  models::QuantizationOptions quantization;
  hf::DType quant_storage = hf::DType::kU8;  // the type under which codes of 4 bits are stored
  uint64_t max_shard_size = uint64_t{50} << 30;
  std::optional<hf::DType> weight_type = {};  // of what is not quantised; nothing: as it is
  FileSystem* files = &real_file_system();
};

// Writes `out`, which must not exist or be an empty folder; it appears complete or not at all.
// transformers and strata load it. Returns what somebody should know, a line each. Memory: the
// largest tensor, as it is (in the file's pages, where it is mapped), and some of its codes.
// Errors: ConfigError for a state that is no whole model or is quantised already, for codes of a
// weight that are no whole number of elements of quant_storage, and those of
// models::quantize_base(); FormatError, IoError.
std::vector<std::string> convert_quantized(SavedState& state, const std::filesystem::path& out,
                                           const QuantizedExportOptions& options);

}  // namespace strata::checkpoint
