// What stands in the folders that people name as the model and the adapter of a run: messages for
// those that hold something else. Never: the content of a file.
#pragma once

#include <filesystem>
#include <string>

namespace strata::train {

// `path`: what model_name_or_path stands for. ConfigError for an adapter, a checkpoint of a run in
// shards, or a file of weights; what else is wrong its reader says.
void require_base_folder(const std::filesystem::path& path);

// The same of adapter_name_or_path: a model, or a checkpoint in shards.
void require_adapter_folder(const std::filesystem::path& path);

// ConfigError for another revision than main of what has one state: a folder, or no model.
void require_one_state(const std::string& model, const std::string& revision);

}  // namespace strata::train
