// Writes what other tools load: a full Hugging Face model or a PEFT adapter. Owns: the order in
// which units are gathered and files are completed. Never: configuration and tokenizer files
// (train/).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/base/error.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/sharded.h"
#include "strata/hf/adapter_files.h"
#include "strata/shard/unit_store.h"

namespace strata::checkpoint {

struct ExportOptions {
  // Type of floating weights in the files, rounded to nearest; none: as stored (fp32 if trained).
  std::optional<at::ScalarType> type = {};
  SmallFiles beside = {};  // rank 0: published together with the weights
  Trained trained = Trained::kYes;
  FileSystem* files = &real_file_system();
  // The group of all ranks, to wait for rank 0's disk; null: the world's, with its time-out.
  comm::Group* group = nullptr;
};

// What the disk refused to rank 0, which all ranks know of: the same export may be tried again.
class ExportRefused : public IoError {
 public:
  explicit ExportRefused(const std::string& message) : IoError(message) {}
};

// Runs rank 0's `work` on the disk, and nothing on other ranks; all hear whether it went well
// (comm::all_or_nothing). Throws ExportRefused on rank 0 for errors of files. Collective.
void on_disk_of_rank_0(comm::Group& world, const std::string& what,
                       const std::function<void()>& work);

// The type of a weight in a file: codes and buffers keep theirs.
at::ScalarType written_type(const nn::Parameter& parameter, std::optional<at::ScalarType> type);

// model.safetensors, or shards of at most `max_shard_size` bytes and their index, in FOLDER.
// `name_of`: a weight's name in the file, empty to leave it out. Streams unit by unit: memory on
// rank 0 is one segment beyond its shard. Files appear under their names, all together, only when
// all are complete and were read back; weights of an earlier export that are not overwritten are
// removed. Throws ExportRefused. Collective over the world.
void export_model(const std::filesystem::path& folder, shard::UnitStore& store,
                  uint64_t max_shard_size,
                  const std::function<std::string(const nn::Parameter&)>& name_of,
                  ExportOptions options = {});

// adapter_model.safetensors and adapter_config.json in FOLDER, read back after writing. The
// fingerprint of the base (hf/base_fingerprint.h) goes into the file's metadata, unless empty.
// Throws ExportRefused. Collective over the world.
void export_adapter(const std::filesystem::path& folder, shard::UnitStore& store,
                    const adapters::LoraAdapter& adapter, const hf::AdapterConfig& config,
                    const std::string& base_fingerprint = "", ExportOptions options = {});

// The metadata of a file of weights: the base of an adapter, or what codes were made from.
std::map<std::string, std::string> adapter_metadata(const std::string& base_fingerprint);

}  // namespace strata::checkpoint
