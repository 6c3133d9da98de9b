// First values of LoRA branches, as PEFT draws or computes them after torch.manual_seed(seed).
// Owns: the formulas and the order of the draws. Never: where values lie or how ranks talk.
//
// "true": A uniform, B zero. "gaussian": A normal with deviation 1 / r, B zero. "false": both as
// torch.nn.Linear draws them. "orthogonal": of an even rank (Buettner 2024). "pissa",
// "pissa_niter_N" (Meng et al. 2024) and "olora" (Buyukakyuz 2024): of the base's weight, from
// which the branch's part is taken off. "loftq" (Li et al. 2023): the base becomes what 4 or 8 bits
// keep of it, A and B the best approximation of the rest; a base that is stored in 4 bits stays as
// it is (PEFT's replace_lora_weights_loftq). Source: PEFT tuners/lora/layer.py,
// utils/loftq_utils.py. VeRA: tuners/vera/layer.py. Prompts and prefixes: rows of
// torch.nn.Embedding, or of the base's embedding (tuners/prompt_tuning/model.py).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/adapters/lora.h"

namespace strata::adapters {

// ConfigError unless the name is one of the above.
void check_init(const std::string& name);

// Whether first values need the base's weights: "pissa", "olora", "loftq", magnitudes, and prompts
// made of the embedding's rows.
bool starts_from_base(const LoraOptions& options);
// Whether the base's weights differ after initialisation: "pissa", "olora", "loftq". Then a saved
// adapter belongs to the changed base, and whoever loads it must change the base again.
bool changes_base(const LoraOptions& options);

// Whether the base changes by directions searched from random ones ("pissa_niter_N"), which are
// drawn from the run's seed and are in no file.
bool draws_directions(const LoraOptions& options);
// ConfigError for such an adapter: nobody can make the base again that it was trained over. PEFT
// takes other directions off the base than in training. `subject`: the adapter's folder.
void require_known_directions(const LoraOptions& options, const std::string& subject);

// Puts the whole fp32 CPU tensor where the parameter rests.
using Place = std::function<void(nn::Parameter&, const at::Tensor&)>;

// Values that need no base, in module order: all branch weights but magnitudes.
// Requires: !changes_base(options).
void initialize(const LoraAdapter& adapter, uint64_t seed, const Place& place);

// The base's weights and the other ranks, for values that need them. Collective: read, share.
struct BaseAccess {
  int rank = 0;
  int num_ranks = 1;
  std::function<at::Tensor(const nn::Parameter&)> read;  // whole, fp32, a copy
  // What a quantised weight was before, out of the checkpoint; empty: that holds codes, too.
  std::function<at::Tensor(const nn::Parameter&)> read_plain;
  nn::Parameter* embedding = nullptr;                // for prompts
  double embedding_scale = 1.0;                      // models/embedding_scale.h
  Place write;                                       // rounds, or quantises again
  std::function<void(at::Tensor&, int root)> share;  // makes it root's on every rank
};

// The values that starts_from_base() means, layers dealt to ranks. `place` gets branch weights; it
// is not called for an adapter whose values come from a file (`only_base`): then the base alone
// changes. Collective.
void initialize_from_base(const LoraAdapter& adapter, uint64_t seed, const Place& place,
                          const BaseAccess& base, bool only_base);

}  // namespace strata::adapters
