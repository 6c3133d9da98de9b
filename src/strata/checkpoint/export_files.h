// The files of an export: written beside each other in a hidden folder, read back, then put in
// place all together. Owns: those files until publish(). Never: which tensor goes where.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "strata/base/folder_update.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/export_index.h"
#include "strata/hf/safetensors.h"

namespace strata::checkpoint {

// What is known of the values. A gather that failed leaves a matrix of zeros, and so does a branch
// that never trained.
enum class Trained {
  kUnknown,  // taken from elsewhere: zeros may be meant
  kNotYet,   // of a run without an update so far: B of a LoRA branch still is what it starts as
  kYes,      // after an update that changed weights no matrix is zero throughout
};

// Threads: one. Without publish() nothing has happened to the folder.
class ExportFiles {
 public:
  explicit ExportFiles(std::filesystem::path folder, Trained trained = Trained::kUnknown,
                       FileSystem& files = real_file_system());
  ~ExportFiles();
  ExportFiles(const ExportFiles&) = delete;
  ExportFiles& operator=(const ExportFiles&) = delete;

  void add(const std::string& file, std::vector<hf::TensorSpec> specs,
           const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  // The files of a plan.
  void add(const hf::ShardPlan& plan, const std::unordered_map<std::string, hf::TensorSpec>& specs,
           const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  // A small file beside them, whose name may lead into a folder below.
  void add_text(const std::string& file, std::string content);
  // All bytes of one tensor.
  void write(const std::string& name, std::span<const std::byte> data);
  // The same in parts, one behind the other.
  void append(const std::string& name, std::span<const std::byte> data);
  // Completes the files, reads them back and puts them in place (base/folder_update.h); weights of
  // an earlier model in the folder go. Throws IoError, with the folder as it was, when a file does
  // not hold exactly the tensors, values and metadata that were written.
  void publish();

 private:
  struct File {
    std::string name;
    std::vector<hf::TensorSpec> specs;
    std::map<std::string, std::string> metadata;
    std::unique_ptr<hf::SafetensorsWriter> writer;
  };

  void read_back(const File& file) const;
  void read_back(const hf::SafetensorsFile& saved, const hf::TensorSpec& spec) const;
  // The file without which no reader opens the others.
  std::string entry() const;
  std::vector<std::string> stale_weights() const;

  std::filesystem::path folder_;
  Trained trained_;
  FileSystem& file_system_;
  FolderUpdate update_;
  std::vector<File> files_;  // behind the folder they lie in
  std::map<std::string, std::string> texts_;
  std::unordered_map<std::string, size_t> file_of_;
  // What was written of a tensor so far.
  struct Written {
    uint64_t size_bytes = 0;
    Checksum checksum;
  };
  std::unordered_map<std::string, Written> written_;
};

// Whether values all of zeros in a tensor of this name and shape mean that it was never saved.
bool must_not_be_zero(const std::string& name, const std::vector<int64_t>& shape, Trained trained);

bool is_zero(std::span<const std::byte> bytes);

}  // namespace strata::checkpoint
