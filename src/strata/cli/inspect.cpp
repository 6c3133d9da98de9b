// `strata inspect`: what lies in a checkpoint, a model, an adapter or a file of tensors.
#include <algorithm>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/base/visible_text.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/repair.h"
#include "strata/checkpoint/setting_text.h"
#include "strata/cli/command.h"
#include "strata/cli/file_flags.h"
#include "strata/cli/inspect_gguf.h"
#include "strata/cli/standard_streams.h"

namespace strata::cli {
namespace {

using checkpoint::SavedState;
using checkpoint::SavedTensor;

constexpr const char* kUsage =
    "usage: strata inspect PATH [--verify] [--repair] [--json] [--all]\n\n"
    "PATH: a checkpoint-N folder, a model or adapter folder, a .safetensors file, a folder of\n"
    "torch.distributed.checkpoint (or accelerate's, with pytorch_model_fsdp_0 in it), or a file "
    "of\n"
    "torch.save, or a GGUF file. Nothing in it is run.\n"
    "  --verify   verify every checksum\n"
    "  --repair   first complete what a crash left half done there (a result on its way into\n"
    "             place, a checkpoint that was being replaced), unless a run is writing there\n"
    "  --all      list every tensor, not just the first of each kind\n"
    "  --json     print JSON\n";
constexpr size_t kShown = 12;  // tensors of a kind

std::string readable(uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

// The method of an adapter, by its config, else by the settings of its run.
std::string adapter_words(const SavedState& state) {
  const Json& config = state.facts().adapter_config;
  const bool is_known = config.is_object();
  const Json& source = is_known ? config : state.facts().settings;
  const auto text = [&](const char* key) -> std::string {
    const auto found = source.find(key);
    if (found == source.end() || found->is_null()) return "";
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  // Settings of a run that continued an adapter say nothing of it.
  if (!is_known && !text("adapter_name_or_path").empty()) return ", a continued adapter";
  const std::string type = text("peft_type");
  if (type == "IA3") return ", (IA)^3";
  if (type == "PROMPT_TUNING" || type == "PREFIX_TUNING") {
    return fmt::format(", {} tuning of {} tokens", type == "PROMPT_TUNING" ? "prompt" : "prefix",
                       text("num_virtual_tokens"));
  }
  return fmt::format(", {} of rank {}", type == "VERA" ? "VeRA" : "LoRA",
                     text(is_known ? "r" : "lora_r"));
}

// What a run must be like to continue from here.
std::string resumable(const SavedState& state) {
  const auto setting = [&](const char* name) {
    return checkpoint::setting_text(state.facts().settings, name);
  };
  if (!state.facts().format.starts_with("Strata")) {
    if (const std::string file = checkpoint::numbered_states(state); !file.empty()) {
      return fmt::format(
          "weights only: the states of {} are numbered, and nothing here says what the numbers "
          "mean",
          file);
    }
    return state.has_optimizer() ? "after strata convert --to strata"
                                 : "weights only: nothing to resume";
  }
  if (!state.has_optimizer()) return "no: it was saved without the optimizer (save_only_model)";
  std::string text = "--resume_from_checkpoint, any number of ranks and any sharding strategy";
  if (const auto rows = state.facts().rows_per_step) {
    text += fmt::format(", {} per step (ranks x batch x accumulation)", counted(*rows, "row"));
  }
  const std::string model = setting("model_name_or_path");
  if (!model.empty()) text += fmt::format(", model {}", model);
  if (state.is_adapter()) text += adapter_words(state);
  const std::string optim = setting("optim");
  if (!optim.empty()) text += fmt::format(", optim {}", optim);
  return text;
}

struct Sums {
  size_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

std::vector<std::pair<std::string, Sums>> sums_by_kind(const SavedState& state) {
  std::vector<std::pair<std::string, Sums>> kinds;
  for (const SavedTensor& tensor : state.tensors()) {
    if (kinds.empty() || kinds.back().first != tensor.kind) {
      auto found = std::ranges::find(kinds, tensor.kind, &std::pair<std::string, Sums>::first);
      if (found == kinds.end()) {
        kinds.emplace_back(tensor.kind, Sums{});
      } else {
        std::rotate(found, found + 1, kinds.end());
      }
    }
    Sums& sums = kinds.back().second;
    ++sums.tensors;
    sums.bytes += tensor.size_bytes();
    sums.elements += tensor.size_bytes() / hf::size_of(tensor.dtype);
  }
  std::ranges::stable_sort(kinds, {}, [](const auto& kind) { return kind.first != "parameter"; });
  return kinds;
}

void print_text(const SavedState& state, bool all) {
  const auto& facts = state.facts();
  fmt::print("{}: {}", state.path().string(), facts.format);
  // Of files in fp8 the state tells what conversions and runs are made of.
  if (facts.format.ends_with(" in fp8")) fmt::print(", shown decoded");
  if (facts.step) fmt::print(", step {}", *facts.step);
  if (facts.num_updates) fmt::print(", {}", counted(*facts.num_updates, "update"));
  if (facts.world_size > 0) fmt::print(", written by {}", counted(facts.world_size, "rank"));
  fmt::print("\ncan be resumed: {}\n", resumable(state));
  if (!facts.base_fingerprint.empty()) {
    fmt::print("fingerprint of the base: {}\n", facts.base_fingerprint);
  }
  for (const auto& [kind, sums] : sums_by_kind(state)) {
    fmt::print("\n{}: {}, {}, {}\n", kind, counted(sums.tensors, "tensor"),
               counted(sums.elements, "element"), readable(sums.bytes));
    size_t shown = 0;
    for (const SavedTensor& tensor : state.tensors()) {
      if (tensor.kind != kind) continue;
      if (!all && shown == kShown) {
        fmt::print("  ... {} more (--all)\n", sums.tensors - shown);
        break;
      }
      ++shown;
      fmt::print("  {:<5} {:<16} {:>10}  {}\n", hf::name_of(tensor.dtype),
                 fmt::format("[{}]", fmt::join(tensor.shape, ", ")), readable(tensor.size_bytes()),
                 visible(tensor.weight));
    }
  }
}

void print_json(const SavedState& state, const std::string& verified) {
  const auto& facts = state.facts();
  Json tensors = Json::array();
  for (const SavedTensor& tensor : state.tensors()) {
    tensors.push_back({{"kind", tensor.kind},
                       {"name", tensor.weight},
                       {"dtype", std::string(hf::name_of(tensor.dtype))},
                       {"shape", tensor.shape},
                       {"bytes", tensor.size_bytes()}});
  }
  Json json{{"path", state.path().string()},
            {"format", facts.format},
            {"world_size", facts.world_size},
            {"resume", resumable(state)},
            {"tensors", tensors}};
  if (facts.step) json["step"] = *facts.step;
  if (facts.num_updates) json["num_updates"] = *facts.num_updates;
  if (!facts.base_fingerprint.empty()) json["base_fingerprint"] = facts.base_fingerprint;
  if (!verified.empty()) json["verified"] = verified;
  fmt::print("{}\n", dump_python(json, 2, /*sort_keys=*/false));
}

}  // namespace

int run_inspect(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const FileFlags flags =
      read_file_flags(arguments, "inspect",
                      {{"verify", true}, {"repair", true}, {"json", true}, {"all", true}}, 1, 1);
  if (flags.is_on("repair")) {
    for (const std::string& line : checkpoint::repair(flags.paths[0])) {
      tell("note: {}\n", visible(line));
    }
  }
  if (is_gguf_file(flags.paths[0])) {
    if (flags.is_on("verify")) tell("note: layout only: GGUF files hold no checksums\n");
    print_gguf(flags.paths[0], {.is_json = flags.is_on("json"), .is_whole = flags.is_on("all")});
    return 0;
  }
  const auto state = checkpoint::open_saved_state(flags.paths[0]);
  const std::string verified = flags.is_on("verify") ? state->verify() : "";
  if (flags.is_on("json")) {
    print_json(*state, verified);
    return 0;
  }
  print_text(*state, flags.is_on("all"));
  if (!verified.empty()) fmt::print("\nverified: {}\n", verified);
  return 0;
}

}  // namespace strata::cli
