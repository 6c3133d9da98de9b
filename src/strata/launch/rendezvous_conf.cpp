#include "strata/launch/rendezvous_conf.h"

#include <algorithm>
#include <charconv>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"
#include "strata/launch/address.h"

namespace strata::launch {
namespace {

constexpr int kPortOfMeeting = 29500;  // accelerate's
// torchrun's for its static kind.
constexpr std::chrono::seconds kStaticJoinTimeout{900};
// Launchers of one machine are started by one script, or by hand in two windows.
constexpr std::chrono::seconds kJoinTimeoutOfOneMachine{120};

int positive_number(const std::string& key, const std::string& value) {
  int number = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || *stop != '\0' || number < 1) {
    throw ConfigError("rdzv_conf: found \"{}\" for {}, expected a number of seconds", value, key);
  }
  return number;
}

bool truth(const std::string& key, std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  if (value == "true" || value == "1" || value == "yes") return true;
  if (value == "false" || value == "0" || value == "no") return false;
  throw ConfigError("rdzv_conf: found \"{}\" for {}, expected true or false", value, key);
}

// Why only launchers of this machine can come; empty: others can.
std::string why_only_here(const MeetingOptions& options) {
  std::string fault;
  if (means_each_machine_itself(options.address)) {
    fault = options.address + " is each machine itself";
  } else if (options.is_host == false && is_address_of_this_machine(options.address)) {
    fault = fmt::format("{} is this machine, not another one", options.address);
  } else {
    return "";
  }
  return fault +
         ": where the launchers are on several machines, give --main_process_ip the address that "
         "machine 0 has in the network (strata env lists it there) on all of them";
}

}  // namespace

RendezvousConf parse_rendezvous_conf(const std::string& text) {
  const std::vector<std::string> inert = {
      "read_timeout",        "last_call_timeout", "close_timeout",
      "keep_alive_interval", "heartbeat_timeout", "keep_alive_max_attempt",
      "store_type",          "use_libuv",         "rank"};
  RendezvousConf conf;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ConfigError("rdzv_conf: found \"{}\", expected KEY=VALUE,KEY=VALUE", part);
    }
    const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
    if (key == "join_timeout" || key == "timeout") {
      conf.join_timeout = std::chrono::seconds(positive_number(key, value));
    } else if (key == "is_host") {
      conf.is_host = truth(key, value);
    } else if (std::ranges::find(inert, key) != inert.end()) {
      conf.without_effect.push_back(key);
    } else {
      std::vector<std::string> known = inert;
      known.insert(known.end(), {"join_timeout", "timeout", "is_host"});
      const auto near = closest(key, known);
      throw ConfigError("rdzv_conf: found the unknown key \"{}\", expected a known one; {}", key,
                        near ? "did you mean " + *near + "?" : "as join_timeout");
    }
  }
  return conf;
}

bool uses_meeting(const config::LaunchConfig& config) { return config.num_machines > 1; }

MeetingOptions meeting_options(const config::LaunchConfig& config, int world_size,
                               const std::string& launch_time) {
  const RendezvousConf conf = parse_rendezvous_conf(config.rdzv_conf);
  MeetingOptions options;
  options.address = config.main_process_ip;
  options.port = config.main_process_port > 0 ? config.main_process_port : kPortOfMeeting;
  options.num_machines = config.num_machines;
  options.settings = fmt::format("{} ranks, {} restarts, {}", world_size, config.max_restarts,
                                 config.rdzv_backend);
  options.launch_time = launch_time;
  if (config.rdzv_backend == config::RendezvousBackend::kStatic) {
    options.machine_rank = config.machine_rank;
    options.is_host = config.machine_rank == 0;
    options.join_timeout = kStaticJoinTimeout;
  } else {
    options.is_host = conf.is_host;
  }
  options.only_here = why_only_here(options);
  if (conf.join_timeout) {
    options.join_timeout = *conf.join_timeout;
  } else if (means_each_machine_itself(options.address)) {
    options.first_join_timeout = kJoinTimeoutOfOneMachine;
  }
  return options;
}

}  // namespace strata::launch
