// The safetensors files of an export: written under temporary names, read back, then renamed all
// together. Owns: those files until publish(). Never: which tensor goes where.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "strata/hf/export_index.h"
#include "strata/hf/safetensors.h"

namespace strata::checkpoint {

// Threads: one. The destructor without publish() removes what was written.
class ExportFiles {
 public:
  // `of_training`: what is published must hold no matrix of zeros (but B of a LoRA branch, which
  // starts so): a gather that failed leaves one.
  explicit ExportFiles(std::filesystem::path folder, bool of_training = false)
      : folder_(std::move(folder)), of_training_(of_training) {}
  ~ExportFiles();
  ExportFiles(const ExportFiles&) = delete;
  ExportFiles& operator=(const ExportFiles&) = delete;

  void add(const std::string& file, std::vector<hf::TensorSpec> specs,
           const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  // The files of a plan.
  void add(const hf::ShardPlan& plan, const std::unordered_map<std::string, hf::TensorSpec>& specs);
  // All bytes of one tensor.
  void write(const std::string& name, std::span<const std::byte> data);
  // Completes the files, reads them back, gives them their names and syncs the folder. Throws
  // IoError, with nothing renamed, when a file does not hold exactly the tensors of its specs, with
  // the values that were written.
  void publish();

 private:
  std::filesystem::path temporary(const std::string& file) const;
  void read_back(size_t file) const;
  void read_back(const hf::SafetensorsFile& saved, const hf::TensorSpec& spec) const;

  std::filesystem::path folder_;
  bool of_training_;
  std::vector<std::string> files_;
  std::vector<std::vector<hf::TensorSpec>> specs_;  // by file
  std::vector<std::unique_ptr<hf::SafetensorsWriter>> writers_;
  std::unordered_map<std::string, size_t> file_of_;
  std::unordered_map<std::string, std::string> checksums_;
};

// Weights of an earlier export into the same folder: a loader would take model.safetensors before
// newer shards.
void remove_stale_weights(const std::filesystem::path& folder, const hf::ShardPlan& plan);

}  // namespace strata::checkpoint
