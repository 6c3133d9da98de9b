// `strata convert`: saved states from one format to another.
#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/convert/plain_lora.h"
#include "strata/checkpoint/convert/text_model.h"
#include "strata/checkpoint/quantized_export.h"
#include "strata/cli/command.h"
#include "strata/cli/conversion.h"
#include "strata/cli/convert_gguf.h"
#include "strata/cli/file_flags.h"
#include "strata/cli/quantization_flags.h"
#include "strata/train/saving/resume.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::ConvertOptions;
using checkpoint::ConvertTarget;

constexpr const char* kUsage =
    "usage: strata convert PATH OUT --to TARGET [flags]\n\n"
    "PATH: whatever strata inspect reads. OUT: a new folder; for gguf a new file.\n\n"
    "TARGET:\n"
    "  safetensors                   a model or adapter folder as from_pretrained loads it\n"
    "  bin                           pytorch_model.bin; with an optimizer pytorch_model_fsdp.bin "
    "and\n"
    "                                optimizer.bin\n"
    "  dcp                           accelerate's pytorch_model_fsdp_0 and optimizer_0\n"
    "                                (torch.distributed.checkpoint)\n"
    "  strata                        OUT/checkpoint-STEP, to be resumed with --output_dir OUT\n"
    "  bnb-4bit, bnb-8bit            a model folder whose linear layers bitsandbytes has "
    "quantised\n"
    "  gguf                          a file that llama.cpp, Ollama and LM Studio run; for a LoRA "
    "adapter\n"
    "                                one that they load in addition to the base's (--lora)\n"
    "  lora                          an adapter initialised with pissa or olora, as one of twice "
    "the rank\n"
    "                                over the unchanged base\n"
    "  text-model                    the language model out of a model that also reads images or "
    "sound\n"
    "                                (Gemma 3, Mistral Small 3, LLaVA)\n\n"
    "flags:\n"
    "  --base_model FOLDER           for lora, and for gguf from an adapter: instead of the base "
    "that the\n"
    "                                adapter names; or a name on the Hub\n"
    "  --path_initial_model_for_weight_conversion FOLDER\n"
    "                                for lora: the adapter before its first step (pissa_niter_N)\n"
    "  --weights_only                leave the optimizer's state out\n"
    "  --forget_base                 for an adapter: without the mark of the base it was trained "
    "on\n"
    "  --dtype TYPE                  float32, bfloat16 or float16 for the weights; for gguf also "
    "q8_0\n"
    "  --max_shard_size SIZE         of safetensors files (default: 50GB)\n\n"
    "for bnb-4bit and bnb-8bit, as in training:\n"
    "  --bnb_4bit_quant_type TYPE    nf4 or fp4 (default: nf4)\n"
    "  --bnb_4bit_blocksize N        elements that share a scale (default: 64)\n"
    "  --bnb_4bit_use_double_quant   also quantise the scales\n"
    "  --bnb_4bit_compute_dtype TYPE (default: float32)\n"
    "  --bnb_4bit_quant_storage TYPE the type under which codes are stored (default: uint8)\n"
    "  --llm_int8_threshold X        (default: 6.0)\n"
    "  --llm_int8_skip_modules A,B   modules that are not quantised; default: the output layer\n";
ConvertTarget target_of(const std::string& name) {
  if (name == "safetensors") return ConvertTarget::kSafetensors;
  if (name == "bin") return ConvertTarget::kTorch;
  if (name == "dcp") return ConvertTarget::kDcp;
  if (name == "strata") return ConvertTarget::kStrata;
  throw ConfigError(
      "--to: found {}, expected safetensors, bin, dcp, strata, bnb-4bit, bnb-8bit, gguf, lora or "
      "text-model",
      name.empty() ? "no target" : '"' + name + '"');
}

constexpr const char* kInitialAdapter = "path_initial_model_for_weight_conversion";

struct TargetFlag {
  const char* name;
  std::vector<std::string_view> targets;
};

// Flags that --to has no use for.
void refuse_flags_of_others(const FileFlags& flags) {
  const TargetFlag kFlags[] = {{"base_model", {"lora", "gguf"}},
                               {kInitialAdapter, {"lora"}},
                               {"bnb_4bit_quant_type", {"bnb-4bit"}},
                               {"bnb_4bit_blocksize", {"bnb-4bit"}},
                               {"bnb_4bit_compute_dtype", {"bnb-4bit"}},
                               {"bnb_4bit_quant_storage", {"bnb-4bit"}},
                               {"bnb_4bit_use_double_quant", {"bnb-4bit"}},
                               {"llm_int8_threshold", {"bnb-8bit"}},
                               {"llm_int8_skip_modules", {"bnb-4bit", "bnb-8bit"}}};
  const std::string to = flags.get("to");
  for (const auto& [name, targets] : kFlags) {
    if (!flags.has(name) || std::ranges::find(targets, to) != targets.end()) continue;
    throw ConfigError("--{}: found with --to {}, expected {} there; remove it", name, to,
                      fmt::join(targets, " or "));
  }
}

// `what` needs the values of the weights, and whoever reads its result expects plain ones.
void refuse_packed(const checkpoint::SavedState& state, const fs::path& folder,
                   std::string_view what) {
  if (!checkpoint::holds_packed(state)) return;
  const bool in_fp8 = std::ranges::any_of(
      state.tensors(), [](const auto& tensor) { return tensor.dtype == hf::DType::kF8E4M3; });
  const bool in_integers = std::ranges::any_of(state.tensors(), checkpoint::is_of_integers);
  throw ConfigError("{}: found {} in {}, expected plain weights; use a folder of those", what,
                    in_fp8        ? "weights in fp8"
                    : in_integers ? "weights in integers"
                                  : "experts in MXFP4",
                    folder.string());
}

// What an adapter began with: an adapter, or the base off which it was taken.
std::unique_ptr<checkpoint::SavedState> open_start(const FileFlags& flags,
                                                   const checkpoint::SavedState& adapter) {
  if (flags.has(kInitialAdapter)) {
    auto initial = checkpoint::open_saved_state(flags.get(kInitialAdapter));
    if (initial->is_adapter()) return initial;
    throw ConfigError(
        "--{}: found a model, expected an adapter before its first step; for a base "
        "use --base_model",
        kInitialAdapter);
  }
  const fs::path base = base_of(flags, adapter);
  if (checkpoint::is_quantized_folder(base)) {
    throw ConfigError(
        "{}: found a quantised base, which had other codes when the adapter was initialised, "
        "expected plain weights; name the model it was made from with --base_model",
        base.string());
  }
  return checkpoint::open_saved_state(base);
}

int convert_to_lora(const FileFlags& flags) {
  const auto adapter = checkpoint::open_saved_state(flags.paths[0]);
  if (!adapter->is_adapter()) {
    throw ConfigError(
        "{}: found no weights of an adapter, expected a PEFT folder or a checkpoint "
        "of a run with an adapter",
        flags.paths[0]);
  }
  const auto start = open_start(flags, *adapter);
  checkpoint::PlainLoraState plain(*adapter, *start);
  ConvertOptions options;
  options.keeps_base_mark = !flags.is_on("forget_base");
  options.weight_type = weight_type(flags);
  tell_result(checkpoint::convert(plain, flags.paths[1], options), flags.paths[1]);
  return 0;
}

int convert_to_text_model(const FileFlags& flags) {
  const fs::path folder = flags.paths[0];
  if (!fs::is_regular_file(folder / "config.json")) {
    throw ConfigError(
        "{}: found no config.json, expected the folder of a model of texts and images",
        folder.string());
  }
  checkpoint::TextModelState state(folder);
  ConvertOptions options;
  options.weight_type = weight_type(flags);
  options.max_shard_size = max_shard_size(flags);
  options.config = state.config();
  std::vector<std::string> notes = checkpoint::convert(state, flags.paths[1], options);
  if (!state.left_out().empty()) {
    notes.push_back(fmt::format("left out: {}", fmt::join(state.left_out(), ", ")));
  }
  tell_result(notes, flags.paths[1]);
  return 0;
}

int convert_to_codes(const FileFlags& flags, bool in_8bit) {
  give_back_freed_tensors();
  const auto model = checkpoint::open_saved_state(flags.paths[0]);
  refuse_packed(*model, flags.paths[0], in_8bit ? "--to bnb-8bit" : "--to bnb-4bit");
  tell_result(checkpoint::convert_quantized(*model, flags.paths[1],
                                            {.quantization = quantization_of(flags, in_8bit),
                                             .quant_storage = storage_of(flags),
                                             .max_shard_size = max_shard_size(flags),
                                             .weight_type = weight_type(flags)}),
              flags.paths[1]);
  return 0;
}

// Whose optimizer's states have numbers for names, which nothing in the folder explains.
void refuse_numbered_states(const checkpoint::SavedState& state, const fs::path& folder) {
  const std::string file = checkpoint::numbered_states(state);
  if (file.empty()) return;
  if (file == "optimizer.pt") {
    throw ConfigError(
        "{}: found optimizer.pt, whose states are numbered, with weights of torch.save, expected "
        "transformers' checkpoint with model.safetensors or adapter_model.safetensors, which tell "
        "what the numbers mean; make one with --to safetensors, copy optimizer.pt and "
        "trainer_state.json into it and convert that, or pass --weights_only",
        folder.string());
  }
  throw ConfigError(
      "{}: found {} as accelerate's save_state() writes it, whose states are numbered, expected "
      "names of weights (FSDP's) or the folder of transformers' Trainer; pass --weights_only, or "
      "use --to safetensors",
      folder.string(), file);
}

int convert_to_format(const FileFlags& flags) {
  ConvertOptions options;
  options.target = target_of(flags.get("to"));
  options.with_optimizer = !flags.is_on("weights_only");
  options.keeps_base_mark = !flags.is_on("forget_base");
  options.weight_type = weight_type(flags);
  options.max_shard_size = max_shard_size(flags);
  const auto state = checkpoint::open_saved_state(flags.paths[0]);
  const bool wants_optimizer =
      options.with_optimizer && options.target != ConvertTarget::kSafetensors;
  if (wants_optimizer) refuse_numbered_states(*state, flags.paths[0]);
  // What the run would have left; the other targets are there to go on from and keep the masters.
  const bool is_result = options.target == ConvertTarget::kSafetensors;
  if (is_result && !options.weight_type) options.weight_type = checkpoint::result_type_of(*state);
  if (options.target == ConvertTarget::kStrata) {
    refuse_packed(*state, flags.paths[0], "--to strata");
    const bool is_marked = state->is_adapter() && options.keeps_base_mark;
    options.small_files = train::fresh_progress(flags.paths[0], state->facts().step.value_or(0),
                                                is_marked ? state->facts().base_fingerprint : "");
  }
  tell_result(checkpoint::convert(*state, flags.paths[1], options), flags.paths[1]);
  return 0;
}

}  // namespace

int run_convert(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const FileFlags flags = read_file_flags(arguments, "convert",
                                          {{"to"},
                                           {.name = "base_model", .is_path = true},
                                           {.name = kInitialAdapter, .is_path = true},
                                           {"weights_only", true},
                                           {"forget_base", true},
                                           {"dtype"},
                                           {"max_shard_size"},
                                           {"bnb_4bit_quant_type"},
                                           {"bnb_4bit_blocksize"},
                                           {"bnb_4bit_compute_dtype"},
                                           {"bnb_4bit_quant_storage"},
                                           {"bnb_4bit_use_double_quant", true},
                                           {"llm_int8_threshold"},
                                           {"llm_int8_skip_modules"}},
                                          2, 2);
  refuse_flags_of_others(flags);
  const std::string to = flags.get("to");
  if (to == "lora") return convert_to_lora(flags);
  if (to == "text-model") return convert_to_text_model(flags);
  if (to == "gguf") return convert_to_gguf_file(flags);
  if (to == "bnb-4bit" || to == "bnb-8bit") return convert_to_codes(flags, to == "bnb-8bit");
  return convert_to_format(flags);
}

}  // namespace strata::cli
