// What launchers tell each other, and when all may start.
#include "strata/launch/meeting.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <thread>

#include "strata/base/error.h"
#include "strata/launch/address.h"

namespace strata::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kEarlyWord{2}, kFirstWord{10}, kLaterWords{60};
// Anyone can reach the port. Who says nothing for so long goes first when there is no more room: no
// more descriptors, or so many links beside those of the machines.
constexpr std::chrono::seconds kTimeToJoin{1};
constexpr std::chrono::milliseconds kPauseWithoutRoom{200};
constexpr size_t kMostStrangers = 64;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

void wait_for_any(const std::vector<int>& descriptors, Clock::time_point deadline) {
  std::vector<pollfd> sources;
  for (int descriptor : descriptors) sources.push_back({descriptor, POLLIN, 0});
  ::poll(sources.data(), sources.size(), milliseconds_until(deadline));
}

int number_in(const Json& message, const char* key) {
  return message.contains(key) && message[key].is_number_integer() ? message[key].get<int>() : -1;
}

std::string string_in(const Json& message, const char* key) {
  return message.contains(key) && message[key].is_string() ? message[key].get<std::string>() : "";
}

bool is_true_in(const Json& message, const char* key) {
  return message.contains(key) && message[key].is_boolean() && message[key].get<bool>();
}

}  // namespace

Meeting::Meeting(const MeetingOptions& options) : options_(options) {
  if (!options.is_host.value_or(is_address_of_this_machine(options.address))) return;
  auto port = reserve_port(options.port, /*listens=*/true);
  if (port) {
    listener_ = std::move(port->socket);
    ::fcntl(listener_.get(), F_SETFL, O_NONBLOCK);  // who called may be gone when it is answered
  } else if (options.is_host) {
    throw ConfigError(
        "main_process_port: found {} in use, expected a free port; choose another on "
        "all machines",
        options.port);
  }
  // Taken, and nobody said who serves: another launcher of this machine does.
}

Meeting::~Meeting() = default;

Round Meeting::begin_round(int attempt) {
  if (!is_over_) failure_.reset();
  has_ended_ = is_done_ = false;
  num_ended_ = 0;
  next_word_ = Clock::now() + (options_.only_here.empty() ? kFirstWord : kEarlyWord);
  Round round = is_host() ? host_round(attempt) : guest_round(attempt);
  have_met_ = true;
  return round;
}

std::chrono::seconds Meeting::join_timeout() const {
  return have_met_ ? options_.join_timeout
                   : options_.first_join_timeout.value_or(options_.join_timeout);
}

int Meeting::num_joined() const {
  return static_cast<int>(
      std::ranges::count_if(links_, [](const auto& link) { return link->wants_round; }));
}

std::string Meeting::caution() const {
  return options_.only_here.empty() ? "" : "; " + options_.only_here;
}

void Meeting::say_whom_it_waits_for(const std::string& state) {
  if (!options_.say || Clock::now() < next_word_) return;
  next_word_ = Clock::now() + kLaterWords;
  options_.say(fmt::format("rendezvous {}:{}: {}{}; waiting up to {} s", options_.address,
                           options_.port, state, caution(), join_timeout().count()));
}

Round Meeting::host_round(int attempt) {
  is_gathering_ = true;
  // Before others can take the last descriptor.
  std::optional<ReservedPort> reserved = reserve_port(0, /*listens=*/true);
  if (!reserved) throw IoError("socket: found no free port, expected one for rank 0");
  gather_machines();
  attempt = attempt_of_guests(attempt);
  const int port = reserved->number;
  Round round{.attempt = attempt,
              .machine_rank = 0,
              .port = port,
              .reserved = std::move(reserved),
              .launch_time = options_.launch_time};
  tell_start(round);
  is_gathering_ = false;
  num_ended_ = 0;  // an end of the round before may have come late
  failure_.reset();
  return round;
}

void Meeting::gather_machines() {
  const auto deadline = Clock::now() + join_timeout();
  while (num_joined() < options_.num_machines - 1) {
    if (Clock::now() >= deadline) {
      throw CommError(
          "rendezvous {}:{}: found {} of {} machines after {} s, expected all; start the others, "
          "or raise rdzv_conf join_timeout{}",
          options_.address, options_.port, num_joined() + 1, options_.num_machines,
          join_timeout().count(), caution());
    }
    say_whom_it_waits_for(
        fmt::format("{} of {} machines are here", num_joined() + 1, options_.num_machines));
    auto next = std::min(deadline, next_word_);
    if (accepts_again_ > Clock::now()) next = std::min(next, accepts_again_ + milliseconds(1));
    wait_for_any(descriptors(), next);
    news();
    if (is_over_)
      throw CommError("rendezvous: found a machine that was told to stop, expected all");
  }
}

int Meeting::attempt_of_guests(int attempt) {
  for (const auto& link : links_) {
    if (!link->wants_round || link->attempt <= attempt) continue;
    attempt = link->attempt;
    options_.launch_time = link->launch_time;
  }
  return attempt;
}

void Meeting::tell_start(const Round& round) {
  int number = 0;
  for (const auto& link : links_) {
    if (!link->wants_round) continue;  // no launcher, or one too many
    if (!options_.machine_rank) link->machine_rank = ++number;
    link->name =
        fmt::format("machine {} {}", link->machine_rank, link->name.substr(link->name.find('(')));
    link->wants_round = link->has_ended = false;
    link->is_member = true;
    link->wire.send(Json{{"round", round.attempt},
                         {"machine_rank", link->machine_rank},
                         {"port", round.port},
                         {"launch_time", round.launch_time}});
  }
}

Round Meeting::guest_round(int attempt) {
  const auto deadline = Clock::now() + join_timeout();
  const auto require_host = [this] {
    if (!links_.empty() && !is_over_) return;
    throw CommError("rendezvous {}:{}: found the run ended by its host{}, expected a start",
                    options_.address, options_.port, failure_ ? " (" + *failure_ + ")" : "");
  };
  next_.reset();
  if (links_.empty()) connect_to_host();
  require_host();
  links_.front()->wire.send(Json{{"join", options_.settings},
                                 {"num_machines", options_.num_machines},
                                 {"machine_rank", options_.machine_rank.value_or(-1)},
                                 {"attempt", attempt},
                                 {"launch_time", options_.launch_time}});
  while (!next_) {
    if (Clock::now() >= deadline) {
      throw CommError(
          "rendezvous {}:{}: found not all of {} machines after {} s, expected them; start the "
          "others, or raise rdzv_conf join_timeout{}",
          options_.address, options_.port, options_.num_machines, join_timeout().count(),
          caution());
    }
    say_whom_it_waits_for(fmt::format("not all of {} machines are here", options_.num_machines));
    wait_for_any(descriptors(), std::min(deadline, next_word_));
    news();
    require_host();
  }
  failure_.reset();
  options_.launch_time = next_->launch_time;
  return std::move(*std::exchange(next_, std::nullopt));
}

void Meeting::connect_to_host() {
  const auto deadline = Clock::now() + join_timeout();
  std::string reason = "no address";
  do {
    if (auto wire = connect_to(options_.address, options_.port, reason)) {
      add_link(std::move(*wire), "machine 0");
      links_.back()->is_member = true;
      return;
    }
    say_whom_it_waits_for(fmt::format("no launcher of machine 0 yet ({})", reason));
    std::this_thread::sleep_for(milliseconds(200));
  } while (Clock::now() < deadline);
  throw CommError(
      "rendezvous {}:{}: found no host ({}) for {} s, expected the launcher of machine 0; check "
      "main_process_ip and main_process_port{}",
      options_.address, options_.port, reason, join_timeout().count(), caution());
}

void Meeting::add_link(JsonLink wire, const std::string& name) {
  const std::string full_name = fmt::format("{} ({})", name, wire.address());
  links_.push_back(
      std::make_unique<LauncherLink>(LauncherLink{.wire = std::move(wire), .name = full_name}));
}

std::vector<int> Meeting::descriptors() const {
  std::vector<int> result;
  if (is_host() && accepts()) result.push_back(listener_.get());
  for (const auto& link : links_) result.push_back(link->wire.descriptor());
  return result;
}

bool Meeting::accepts() const { return Clock::now() >= accepts_again_; }

void Meeting::accept_links() {
  const size_t most = static_cast<size_t>(options_.num_machines) + kMostStrangers;
  while (links_.size() < most) {
    Accepted accepted = accept_from(listener_.get());
    if (accepted.link) {
      add_link(std::move(*accepted.link), "a machine");
    } else if (accepted.has_room) {
      return;
    } else {
      break;
    }
  }
  accepts_again_ = Clock::now() + kPauseWithoutRoom;
}

void Meeting::make_room() {
  std::erase_if(links_, [](const auto& link) {
    return !link->is_member && !link->wants_round && Clock::now() - link->came > kTimeToJoin;
  });
}

std::optional<std::string> Meeting::news() {
  if (is_host() && accepts()) accept_links();
  for (size_t i = 0; i < links_.size();) {
    LauncherLink& link = *links_[i];
    for (const Json& message : link.wire.receive()) handle(link, message);
    if (link.wire.is_open()) {
      ++i;
      continue;
    }
    lose(link);
    links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (is_host() && !accepts()) make_room();
  return failure_;
}

// Why a launcher cannot take part; empty: it can.
std::string Meeting::problem_with(const LauncherLink& link, const Json& message) {
  const int machines = number_in(message, "num_machines");
  const std::string settings = string_in(message, "join");
  if (machines != options_.num_machines) {
    return fmt::format("num_machines: found {} on {} but {} on machine 0", machines, link.name,
                       options_.num_machines);
  }
  if (settings != options_.settings) {
    return fmt::format("launch: found \"{}\" on {} but \"{}\" on machine 0", settings, link.name,
                       options_.settings);
  }
  if (!options_.machine_rank) return "";
  const int number = number_in(message, "machine_rank");
  const bool is_taken = std::ranges::any_of(links_, [&](const auto& other) {
    return other.get() != &link && other->machine_rank == number;
  });
  if (number == 0 || is_taken) {
    return fmt::format("machine_rank: found {} on two machines, {} and {}", number,
                       number == 0 ? "machine 0" : "one that came before", link.name);
  }
  return "";
}

void Meeting::greet(LauncherLink& link, const Json& message) {
  std::string problem = problem_with(link, message);
  if (problem.empty() && num_joined() >= options_.num_machines - 1) {
    link.wire.send(
        Json{{"refused", fmt::format("num_machines: found more than {} machines, expected "
                                     "no other run at this address and port",
                                     options_.num_machines)}});
    return;
  }
  if (problem.empty()) {
    if (options_.machine_rank) link.machine_rank = number_in(message, "machine_rank");
    link.wants_round = true;
    link.attempt = number_in(message, "attempt");
    link.launch_time = string_in(message, "launch_time");
    return;
  }
  problem += problem.starts_with("machine_rank") ? ", expected every number once"
                                                 : ", expected the same launch on all machines";
  link.wire.send(Json{{"refused", problem}});
  link.has_ended = true;
  // Ranks that train are not ended by a launcher that comes later.
  if (is_gathering_) throw ConfigError("{}", problem);
}

void Meeting::handle(LauncherLink& link, const Json& message) {
  if (is_host()) {
    handle_on_host(link, message);
  } else {
    handle_on_guest(link, message);
  }
}

void Meeting::handle_on_host(LauncherLink& link, const Json& message) {
  if (message.contains("join")) return greet(link, message);
  if (!link.is_member) return;
  if (message.contains("end")) {
    link.has_ended = true;
    ++num_ended_;
    check_end();
  } else if (message.contains("failed")) {
    note_failure(link, message);
    send_all(message, &link);
  }
}

void Meeting::handle_on_guest(LauncherLink& link, const Json& message) {
  if (message.contains("refused")) {
    throw ConfigError("{}", string_in(message, "refused"));
  }
  if (message.contains("round")) {
    next_ = Round{.attempt = number_in(message, "round"),
                  .machine_rank = number_in(message, "machine_rank"),
                  .port = number_in(message, "port"),
                  .launch_time = string_in(message, "launch_time")};
  } else if (message.contains("done")) {
    link.has_ended = is_done_ = true;
  } else if (message.contains("failed")) {
    note_failure(link, message);
  }
}

void Meeting::note_failure(const LauncherLink& link, const Json& message) {
  if (!failure_) {
    const std::string what = string_in(message, "failed");
    failure_ = what.empty() ? link.name + ": found failed, expected it to take part" : what;
    failure_code_ = std::max(number_in(message, "code"), 1);
  }
  is_over_ = is_over_ || is_true_in(message, "final");
}

void Meeting::lose(LauncherLink& link) {
  if (link.has_ended || !link.is_member) return;
  const std::string what = fmt::format(
      "{}: found gone, expected its launcher to take part; look at what happened there", link.name);
  if (!failure_) {
    failure_ = what;
    failure_code_ = 1;
  }
  if (is_host()) send_all(Json{{"failed", what}}, &link);
}

// The host tells all once the last has ended well.
void Meeting::check_end() {
  if (!is_host() || !has_ended_ || num_ended_ < options_.num_machines - 1) return;
  is_done_ = true;
  send_all(Json{{"done", true}});
}

void Meeting::send_all(const Json& message, const LauncherLink* except) {
  for (const auto& link : links_) {
    if (link.get() != except && link->wire.is_open()) link->wire.send(message);
  }
}

void Meeting::tell_failure(const std::string& what, bool is_final, int exit_code) {
  send_all(Json{{"failed", what}, {"final", is_final}, {"code", exit_code}});
}

void Meeting::tell_end() {
  has_ended_ = true;
  if (is_host()) return check_end();
  send_all(Json{{"end", true}});
}

}  // namespace strata::launch
