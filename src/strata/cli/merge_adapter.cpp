// `strata merge-adapter`: an adapter folded into its base.
#include <memory>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/convert/merge.h"
#include "strata/cli/command.h"
#include "strata/cli/conversion.h"
#include "strata/cli/file_flags.h"
#include "strata/hf/export_index.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: strata merge-adapter ADAPTER OUT [flags]\n\n"
    "Folds a LoRA, DoRA, VeRA or (IA)^3 adapter into the weights of its base model.\n"
    "ADAPTER: a PEFT folder, or a checkpoint-N folder of a run with an adapter.\n\n"
    "flags:\n"
    "  --base_model FOLDER           instead of the one that the adapter names; or a name on the "
    "Hub\n"
    "  --dequantize                  for a base in 4 or 8 bits or MXFP4: write its decoded "
    "weights\n"
    "                                (fp8 and integers are always decoded)\n"
    "  --dtype TYPE                  float32, bfloat16 or float16 for the result; default: the "
    "base's\n"
    "  --max_shard_size SIZE         of safetensors files (default: 50GB)\n";

// `base` seen as plain weights; `model`: the same as its files hold it.
std::unique_ptr<checkpoint::SavedState> open_unpacked(const fs::path& base,
                                                      const checkpoint::SavedState& model) {
  if (!checkpoint::holds_packed(model)) {
    throw ConfigError(
        "--dequantize: found {} with plain weights, expected a quantised base; remove it",
        base.string());
  }
  // Blocks are decoded out of the maps of a model folder.
  if (!fs::exists(base / hf::kModelWeightsFile) && !fs::exists(base / hf::kModelIndexFile)) {
    throw ConfigError(
        "--dequantize: found weights in MXFP4 in {}, expected a folder with safetensors files; run "
        "strata convert {} OUT --to safetensors first and name OUT with --base_model",
        base.string(), base.string());
  }
  return std::make_unique<checkpoint::UnpackedState>(base);
}

}  // namespace

int run_merge_adapter(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const FileFlags flags = read_file_flags(arguments, "merge-adapter",
                                          {{.name = "base_model", .is_path = true},
                                           {"dequantize", true},
                                           {"dtype"},
                                           {"max_shard_size"}},
                                          2, 2);
  give_back_freed_tensors();
  const auto adapter = checkpoint::open_saved_state(flags.paths[0]);
  const fs::path base = base_of(flags, *adapter);
  const bool is_quantized = checkpoint::is_quantized_folder(base);
  if (is_quantized && !flags.is_on("dequantize")) {
    throw ConfigError(
        "{}: found a quantised base, expected plain weights to merge into; name the model it was "
        "made from with --base_model, or pass --dequantize to write decoded weights",
        base.string());
  }
  checkpoint::MergeOptions options;
  std::unique_ptr<checkpoint::SavedState> model;
  if (is_quantized) {
    auto decoded = std::make_unique<checkpoint::DecodedState>(base);
    options.decoded = decoded.get();
    model = std::move(decoded);
  } else {
    model = checkpoint::open_saved_state(base);
    // What every reader decodes needs no asking.
    const bool asks = flags.is_on("dequantize") && !checkpoint::is_decoded_folder(base);
    if (asks) model = open_unpacked(base, *model);
  }
  options.weight_type = weight_type(flags);
  options.max_shard_size = max_shard_size(flags);
  tell_result(checkpoint::merge_adapter(*model, *adapter, flags.paths[1], options), flags.paths[1]);
  return 0;
}

}  // namespace strata::cli
