#include "strata/cli/convert_gguf.h"

#include <memory>
#include <optional>

#include "strata/base/error.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/gguf/adapter.h"
#include "strata/checkpoint/gguf/export.h"
#include "strata/cli/conversion.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

std::optional<hf::GgufType> gguf_type(const FileFlags& flags) {
  constexpr const char* kTypes = "float32, bfloat16, float16 or q8_0";
  const std::string name = flags.get("dtype");
  if (name == "q8_0" || name == "Q8_0") return hf::GgufType::kQ8_0;
  const size_t digit = name.find_first_of("qQ") + 1;  // Q4_K_M, iq2_xs
  if (digit >= 1 && digit <= 2 && digit < name.size() && name[digit] >= '0' && name[digit] <= '9') {
    throw ConfigError(
        "--dtype: found \"{}\", expected {}; make the other types of such a file with llama.cpp's "
        "llama-quantize",
        name, kTypes);
  }
  const auto type = weight_type(flags, kTypes);
  if (!type) return std::nullopt;
  if (*type == hf::DType::kF32) return hf::GgufType::kF32;
  return *type == hf::DType::kF16 ? hf::GgufType::kF16 : hf::GgufType::kBF16;
}

int convert_adapter(const FileFlags& flags, checkpoint::SavedState& adapter,
                    const checkpoint::GgufOptions& options) {
  give_back_freed_tensors();
  const fs::path folder = base_of(flags, adapter);
  std::unique_ptr<checkpoint::SavedState> base;
  if (checkpoint::is_quantized_folder(folder)) {
    base = std::make_unique<checkpoint::DecodedState>(folder);
  } else {
    base = checkpoint::open_saved_state(folder);
  }
  tell_result(checkpoint::convert_adapter_to_gguf(*base, adapter, flags.paths[1], options),
              flags.paths[1]);
  return 0;
}

}  // namespace

int convert_to_gguf_file(const FileFlags& flags) {
  for (const char* flag : {"max_shard_size", "forget_base"}) {
    if (!flags.has(flag)) continue;
    throw ConfigError(
        "--{}: found with --to gguf, which writes a single file without a mark of a base, expected "
        "none; remove it",
        flag);
  }
  const checkpoint::GgufOptions options{.type = gguf_type(flags)};
  const auto state = checkpoint::open_saved_state(flags.paths[0]);
  if (state->is_adapter()) return convert_adapter(flags, *state, options);
  if (flags.has("base_model")) {
    throw ConfigError("--base_model: found with {}, a model, expected an adapter; remove it",
                      flags.paths[0]);
  }
  tell_result(checkpoint::convert_to_gguf(*state, flags.paths[1], options), flags.paths[1]);
  return 0;
}

}  // namespace strata::cli
