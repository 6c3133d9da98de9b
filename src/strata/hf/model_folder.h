// A folder of a Hugging Face checkpoint: its config and its tensors, from one file or from the
// shards of an index. Tensors of a model have the names that they have in transformers' model
// (hf/weight_names.h). Also opens adapter folders. Never: what the config or the tensors mean.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/base/json.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::hf {

// Looks for, in this order: config.json with model.safetensors or model.safetensors.index.json;
// adapter_config.json with adapter_model.safetensors.
// Errors: IoError for missing files; FormatError when a tensor is in two files, or listed by the
// index in a file that lacks it. Threads: any number of readers. Memory: maps only; nothing is read
// before bytes() is touched.
class ModelFolder {
 public:
  explicit ModelFolder(const std::filesystem::path& path);

  // config.json, or adapter_config.json of an adapter folder.
  const Json& config() const { return config_; }
  bool is_adapter() const { return is_adapter_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  // Requires: `info` is from this folder. May be unaligned, see SafetensorsFile::bytes.
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  const SafetensorsFile& file_of(const TensorInfo& info) const;
  std::vector<std::string> names() const;  // sorted
  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  struct Place {
    size_t file;
    const TensorInfo* tensor;
  };

  void open_indexed(const std::filesystem::path& index);
  void add_file(const std::filesystem::path& file);

  std::filesystem::path path_;
  Json config_;
  bool is_adapter_ = false;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, Place> places_;  // views into the files' tensor names
};

}  // namespace strata::hf
