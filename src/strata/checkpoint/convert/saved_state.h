// Saved states of all formats seen alike: named tensors that can be read one after the other.
// Owns: which format lies at a path, and the names. Never: homes, ranks, writing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/hf/dtype.h"

namespace strata::checkpoint {

// Kind of weights among the tensors of a state; every other kind is of the optimizer.
inline constexpr const char* kParameter = "parameter";
// Where bitsandbytes keeps quantised state inside that of a weight.
inline constexpr const char* kQuantState = "__bnb_optimizer_quant_state__";

// A small file of a checkpoint: {"name in an adapter's file": "weight"} for tied weights, which are
// one tensor here and have two names there.
inline constexpr const char* kSecondNames = "second_names.json";

// A tensor and what it is: "parameter" or the name of a state of the optimizer ("exp_avg"), and the
// name of its weight.
struct SavedTensor {
  std::string kind;
  std::string weight;
  hf::DType dtype = hf::DType::kF32;
  std::vector<int64_t> shape;
  bool is_frozen = false;    // a weight that was saved beside the trained ones of an adapter
  bool is_decoded = false;   // a file holds codes of it (decoded_state.h)
  bool is_of_codes = false;  // codes or their scales, as bitsandbytes stores them

  bool is_parameter() const { return kind == kParameter; }
  uint64_t size_bytes() const;
};

// What a manifest of ours calls it.
std::string manifest_key(const SavedTensor& tensor);

// What is known of a state beside its tensors.
struct SavedFacts {
  std::string format;                    // "Strata checkpoint", "PyTorch DCP", ...
  int world_size = 0;                    // of the writer; 0: not said
  std::optional<int64_t> step;           // of the run
  std::optional<int64_t> num_updates;    // of the optimizer
  std::optional<int64_t> rows_per_step;  // of all ranks of the run that wrote it
  Json settings = Json::object();        // of that run
  Json adapter_config;                   // of an adapter, where a file holds it; null elsewhere
  Json second_names = Json::object();    // what kSecondNames holds: texts
  std::string base_fingerprint;          // of an adapter's base or of a base; empty: not known
};

// Errors: FormatError for broken or refused content, IoError for missing files.
// Threads: one. Memory: maps; read() gives back the pages it touched.
class SavedState {
 public:
  virtual ~SavedState() = default;

  const std::filesystem::path& path() const { return path_; }
  const SavedFacts& facts() const { return facts_; }
  // Weights first, each kind in the order of the file.
  const std::vector<SavedTensor>& tensors() const { return tensors_; }
  bool has_optimizer() const;
  // Whether the weights are those of an adapter.
  bool is_adapter() const;

  // The whole tensor in row-major order. Requires: index < tensors().size() and out of its size.
  virtual void read(size_t index, std::span<std::byte> out) = 0;
  // The same where the format maps it as it is, without a copy; empty elsewhere. Its pages count as
  // this process's memory until forget(). Valid as long as the state.
  virtual std::span<const std::byte> view(size_t /*index*/) { return {}; }
  virtual void forget(size_t /*index*/) {}
  // Proves every checksum that the format has. Returns what there was to prove, in words.
  virtual std::string verify() = 0;

 protected:
  explicit SavedState(std::filesystem::path path) : path_(std::move(path)) {}
  // Puts weights first; `order[i]` is the place that tensor i of the format has now.
  std::vector<size_t> arrange();

  std::filesystem::path path_;
  SavedFacts facts_;
  std::vector<SavedTensor> tensors_;
};

// A checkpoint-N folder (ours or transformers' Trainer's), a Hugging Face model or adapter folder,
// a .safetensors file, a DCP folder or the folder that holds accelerate's two, a file of torch.save
// or a folder with such files. Throws FormatError that says what was expected where none of them
// lies.
std::unique_ptr<SavedState> open_saved_state(const std::filesystem::path& path);

// The file beside the state's weights whose states of an optimizer have numbers for names, which
// nothing there explains, read or left out: optimizer.bin of accelerate's save_state(),
// optimizer.pt beside weights that are no safetensors. Empty: there is none.
std::string numbered_states(const SavedState& state);

// Formats whose keys nest: a weight's keys from the root, such as {"model", "lm_head.weight"} or
// {"optimizer", "state", "lm_head.weight", "exp_avg"}, to kind and weight. A key above all tensors
// is taken off by the caller.
void name_tensor(const std::vector<std::string>& path, SavedTensor& tensor);

}  // namespace strata::checkpoint
