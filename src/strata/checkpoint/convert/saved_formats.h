// The formats behind SavedState, one function each. Owns: nothing.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

std::unique_ptr<SavedState> open_strata(const std::filesystem::path& folder);
std::unique_ptr<SavedState> open_safetensors(const std::filesystem::path& file);
std::unique_ptr<SavedState> open_model_folder(const std::filesystem::path& folder);
// `parts`: the DCP folders whose tensors together are the state at `path`.
std::unique_ptr<SavedState> open_dcp(const std::filesystem::path& path,
                                     const std::vector<std::filesystem::path>& parts);
// The same of files of torch.save.
std::unique_ptr<SavedState> open_torch_files(const std::filesystem::path& path,
                                             const std::vector<std::filesystem::path>& parts);
// Weights beside optimizer.pt, as transformers' Trainer saves them.
std::unique_ptr<SavedState> open_trainer_folder(const std::filesystem::path& folder);

// The step of a run of transformers' Trainer or of ours beside the weights; nothing where the
// folder does not say. FormatError for what is no count.
std::optional<int64_t> trainer_step(const std::filesystem::path& folder);
// The same, and nothing for what is no count: weights alone do without it.
std::optional<int64_t> readable_step(const std::filesystem::path& folder);

}  // namespace strata::checkpoint
