// Files of the Hub into its cache, over HTTP, in the layout and with the locks of huggingface_hub,
// so that both can work on one cache at the same time. Owns: which files, resuming, checksums.
// Never prints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "strata/hf/hub/cache.h"
#include "strata/hf/hub/snapshot.h"

namespace strata::hf {

// What is told while files come. Each may be empty.
struct DownloadProgress {
  // A file's name, bytes so far, all its bytes (0: unknown); also of one that another process
  // downloads.
  std::function<void(const std::string& name, int64_t done, int64_t all)> came = {};
  // A line for people: for whom this process waits.
  std::function<void(const std::string& line)> say = {};
};

struct DownloadOptions {
  WantsFile wants = {};
  WantsFile needs = {};   // of the wanted files those without which the others are of no use
  LacksFiles lacks = {};  // asked where no listing tells what is missing
  DownloadProgress progress = {};
  int tries = 5;  // of each request
};

// True when HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids the network.
bool is_offline();

// The snapshot's folder with the wanted files in it, after downloading what is missing.
// HF_ENDPOINT (default https://huggingface.co) is the server, HF_TOKEN or HF_HOME/token the
// authorization, which no other host gets to see. A broken download is continued where it ended; a
// file gets its name only when its bytes have the hash that the server announced. Busy servers
// (when they say, within five minutes) and broken connections are tried again; refusals and a full
// disk are not.
// Threads, processes: any number; one downloads a file, the others wait for it.
// Errors: IoError that names the address; ConfigError when offline.
std::filesystem::path download_snapshot(const HubRequest& request,
                                        const DownloadOptions& options = {});

// The snapshot's folder as the cache has it, if all that is wanted is there; else after downloading
// what is missing, which is asked of the Hub once a process when the cache holds no listing of the
// commit. What cannot be asked (offline, no network) is taken as it is, unless a file is known to
// be missing.
// Errors: IoError that names what is missing, or the revision that is not in the cache (offline).
std::filesystem::path fetch_snapshot(const HubRequest& request, const DownloadOptions& options);

}  // namespace strata::hf
