// What lies in a folder of a checkpoint, before any of its tensors are read.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace strata::hf {

inline constexpr const char* kTorchIndexFile = "pytorch_model.bin.index.json";

// Whether it holds an adapter and no model: PEFT reads adapter_config.json, whatever lies beside
// it, and so a config.json alone makes no model of it.
bool is_adapter_folder(const std::filesystem::path& folder);

// What an index says: tensor name -> file name. Only plain names: a path could lead elsewhere.
// FormatError for another file.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index);

// The files that the index names. IoError where one is not beside it.
std::set<std::string> indexed_files(const std::filesystem::path& index,
                                    const std::map<std::string, std::string>& weight_map);

}  // namespace strata::hf
