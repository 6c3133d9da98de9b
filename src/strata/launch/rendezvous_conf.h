// How machines find each other, as `rdzv_conf` says it ("join_timeout=300,is_host=true").
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/launch/meeting.h"

namespace strata::launch {

struct RendezvousConf {
  std::optional<std::chrono::seconds> join_timeout;
  std::optional<bool> is_host;              // of c10d
  std::vector<std::string> without_effect;  // known to torchrun, nothing depends on them here
};

// Throws ConfigError for what is no list of KEY=VALUE, unknown keys and wrong values.
RendezvousConf parse_rendezvous_conf(const std::string& text);

// True when launchers meet before they start ranks: those of several machines always do, with fixed
// numbers (static) or as they come (c10d).
bool uses_meeting(const config::LaunchConfig& config);

// `world_size` is compared between machines, with the kind and the number of restarts.
// `launch_time`: when this launcher started, seconds since 1970 as text.
MeetingOptions meeting_options(const config::LaunchConfig& config, int world_size,
                               const std::string& launch_time);

}  // namespace strata::launch
