// The safetensors files of an export: written under temporary names, read back, then renamed all
// together. Owns: those files until publish(). Never: which tensor goes where.
#pragma once

#include <filesystem>
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
  explicit ExportFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~ExportFiles();
  ExportFiles(const ExportFiles&) = delete;
  ExportFiles& operator=(const ExportFiles&) = delete;

  void add(const std::string& file, std::vector<hf::TensorSpec> specs);
  // The files of a plan.
  void add(const hf::ShardPlan& plan, const std::unordered_map<std::string, hf::TensorSpec>& specs);
  // All bytes of one tensor.
  void write(const std::string& name, std::span<const std::byte> data);
  // Completes the files, reads them back, gives them their names and syncs the folder. Throws
  // IoError, with nothing renamed, when a file does not hold what was written.
  void publish();

 private:
  std::filesystem::path temporary(const std::string& file) const;
  void read_back(const std::string& file) const;

  std::filesystem::path folder_;
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<hf::SafetensorsWriter>> writers_;
  std::unordered_map<std::string, size_t> file_of_;
  std::unordered_map<std::string, std::string> checksums_;
};

// Weights of an earlier export into the same folder: a loader would take model.safetensors before
// newer shards.
void remove_stale_weights(const std::filesystem::path& folder, const hf::ShardPlan& plan);

}  // namespace strata::checkpoint
