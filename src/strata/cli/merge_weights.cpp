// `strata merge-weights`: one model out of a sharded checkpoint.
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/folders.h"
#include "strata/cli/command.h"
#include "strata/cli/conversion.h"
#include "strata/cli/file_flags.h"
#include "strata/hf/formats/dcp.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: strata merge-weights CHECKPOINT OUT [flags]\n\n"
    "Merges a sharded checkpoint, ours or a folder of torch.distributed.checkpoint, into one "
    "model.\n\n"
    "flags:\n"
    "  --unsafe_serialization        pytorch_model.bin instead of model.safetensors\n"
    "  --remove_checkpoint_dir       remove CHECKPOINT afterwards\n";

// A folder that may go with --remove_checkpoint_dir: a sharded checkpoint and nothing else, above
// all no output folder of a run, and not where `out` comes to lie.
void require_removable(const fs::path& checkpoint, const fs::path& out) {
  const bool is_sharded = fs::is_regular_file(checkpoint / "manifest.json") ||
                          hf::is_dcp_folder(checkpoint) ||
                          hf::is_dcp_folder(checkpoint / "pytorch_model_fsdp_0");
  if (!is_sharded || !checkpoint::list(checkpoint).empty() ||
      !checkpoint::passed_over(checkpoint).empty()) {
    throw ConfigError(
        "--remove_checkpoint_dir: found {}, expected a sharded checkpoint (a folder with "
        "manifest.json, or of torch.distributed.checkpoint) without others in it; drop the flag",
        checkpoint.string());
  }
  const fs::path inner = fs::weakly_canonical(fs::absolute(out)), outer = fs::canonical(checkpoint);
  const fs::path relative = inner.lexically_relative(outer);
  if (!relative.empty() && *relative.begin() != "..") {
    throw ConfigError(
        "--remove_checkpoint_dir: found {} inside {}, expected the result elsewhere, as it would "
        "go with the checkpoint; name another folder",
        out.string(), checkpoint.string());
  }
}

// Renamed first: half of a checkpoint must not look like one.
void remove_converted(const fs::path& checkpoint) {
  const fs::path folder = fs::canonical(checkpoint);
  const fs::path doomed = folder.string() + ".tmp-removed";
  std::error_code error;
  fs::rename(folder, doomed, error);
  if (!error) fs::remove_all(doomed, error);
  if (!error) return;
  throw IoError("{}: found {} when removing it, expected it to go (--remove_checkpoint_dir)",
                folder.string(), error.message());
}

}  // namespace

int run_merge_weights(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const FileFlags flags =
      read_file_flags(arguments, "merge-weights",
                      {{"unsafe_serialization", true}, {"remove_checkpoint_dir", true}}, 2, 2);
  const auto state = checkpoint::open_saved_state(flags.paths[0]);
  if (state->is_adapter()) {
    throw ConfigError(
        "{}: found an adapter, expected the weights of a model; use strata merge-adapter",
        flags.paths[0]);
  }
  if (flags.is_on("remove_checkpoint_dir")) require_removable(flags.paths[0], flags.paths[1]);
  checkpoint::ConvertOptions options;
  options.with_optimizer = false;
  if (flags.is_on("unsafe_serialization")) options.target = checkpoint::ConvertTarget::kTorch;
  options.weight_type = checkpoint::result_type_of(*state);
  tell_result(checkpoint::convert(*state, flags.paths[1], options), flags.paths[1]);
  if (flags.is_on("remove_checkpoint_dir")) remove_converted(flags.paths[0]);
  return 0;
}

}  // namespace strata::cli
