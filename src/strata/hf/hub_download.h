// Files of the Hub into its cache, over HTTP, in the layout and with the locks of huggingface_hub,
// so that both can work on one cache at the same time. Owns: which files, resuming, checksums.
// Never prints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "strata/hf/hub_cache.h"

namespace strata::hf {

// Told while a file comes: its name, bytes so far, all its bytes (0: unknown).
using DownloadProgress = std::function<void(const std::string&, int64_t, int64_t)>;

struct DownloadOptions {
  // Whether a file of the repository is wanted; all if not set.
  std::function<bool(const std::string&)> wants = {};
  DownloadProgress progress = {};
};

// True when HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids the network.
bool is_offline();

// The snapshot's folder with the wanted files in it, after downloading what is missing.
// HF_ENDPOINT (default https://huggingface.co) is the server, HF_TOKEN or HF_HOME/token the
// authorization, which no other host gets to see. A broken download is continued where it ended; a
// file gets its name only when its bytes have the hash that the server announced. Busy servers and
// broken connections are tried five times.
// Threads, processes: any number; one downloads a file, the others wait for it.
// Errors: IoError that names the address; ConfigError when offline.
std::filesystem::path download_snapshot(const HubRequest& request,
                                        const DownloadOptions& options = {});

// A model's folder: what exists under the name; else the snapshot of the Hub's model of that name,
// downloaded if it is not in the cache (weights as safetensors, config, tokenizer) and the network
// may be used; else the name itself, which the reader of the folder will refuse.
std::filesystem::path locate_model(const std::string& name_or_path,
                                   const std::filesystem::path& cache = {},
                                   const DownloadProgress& progress = {});

// The same for whoever needs config.json alone: of a model that is not in the cache nothing else is
// downloaded, and that to a cache of its own ("configs" in the cache), where it does not pass for
// the model.
std::filesystem::path locate_model_config(const std::string& name_or_path,
                                          const std::filesystem::path& cache = {},
                                          const DownloadProgress& progress = {});

}  // namespace strata::hf
