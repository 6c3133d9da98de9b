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
#include "strata/base/xxh3.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/export_index.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {

// What is known of the values. A gather that failed leaves a matrix of zeros, and so does a branch
// that never trained.
enum class Trained {
  kUnknown,  // taken from elsewhere: zeros may be meant
  kNotYet,   // of a run without an update so far: B of a LoRA branch still is what it starts as
  kYes,      // after an update that changed weights
};

// Which matrices of zeros were never saved: those that start as something else, and those of an
// adapter that start as zeros if they all still are after an update. One alone may be: no gradient
// reaches a layer after which the model itself multiplies by zeros.
class ZeroCheck {
 public:
  explicit ZeroCheck(Trained trained) : trained_(trained) {}
  // Notes a tensor; whether it was never saved.
  bool refuses(const std::string& name, const std::vector<int64_t>& shape, bool is_zero);
  // After the last tensor: one of those that are all as they started; empty: some are not.
  std::string untrained() const { return has_trained_ ? "" : untrained_; }

 private:
  Trained trained_;
  std::string untrained_;
  bool has_trained_ = false;
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
  // The same in parts, one after the other.
  void append(const std::string& name, std::span<const std::byte> data);
  // Completes the files, reads them back and puts them in place (base/folder_update.h); weights of
  // an earlier model in the folder go, and so does what an earlier run's result has beside its
  // weights and this one has not, such as a template. With the folder as it was: throws IoError
  // when a file does not hold exactly the tensors, values and metadata that were written,
  // FormatError when those are zeros that were never trained.
  void publish();

 private:
  struct File {
    std::string name;
    std::vector<hf::TensorSpec> specs;
    std::map<std::string, std::string> metadata;
    std::unique_ptr<hf::SafetensorsWriter> writer;
  };

  void read_back(const File& file, ZeroCheck& zeros) const;
  void read_back(const hf::SafetensorsFile& saved, const hf::TensorSpec& spec,
                 ZeroCheck& zeros) const;
  // The file without which no reader opens the others.
  std::string entry() const;
  std::vector<std::string> stale_weights() const;
  // Files beside the weights of an earlier run's result; of a folder of templates all of it where
  // nothing else is there.
  std::vector<std::string> stale_companions() const;

  std::filesystem::path folder_;
  Trained trained_;
  FileSystem& file_system_;
  FolderUpdate update_;
  std::vector<File> files_;  // after the folder they lie in
  std::map<std::string, std::string> texts_;
  std::unordered_map<std::string, size_t> file_of_;
  // What was written of a tensor so far.
  struct Written {
    uint64_t size_bytes = 0;
    Xxh3 checksum;
  };
  std::unordered_map<std::string, Written> written_;
};

bool is_zero(std::span<const std::byte> bytes);

// For messages, of ZeroCheck::untrained().
std::string matrices_like(const std::string& name);
// A file that is not worth keeping, by no fault of the disk. FormatError.
[[noreturn]] void throw_zeros(const std::filesystem::path& file, const std::string& where);

}  // namespace strata::checkpoint
