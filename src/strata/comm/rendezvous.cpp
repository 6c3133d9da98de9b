#include "strata/comm/rendezvous.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "strata/base/error.h"
#include "strata/comm/device_group.h"
#include "strata/comm/gloo_group.h"
#include "strata/comm/roll_call.h"
#include "strata/comm/shm_group.h"
#include "strata/comm/silence_watch.h"
#include "strata/comm/single_group.h"
#include "strata/comm/store_texts.h"
#include "strata/comm/watched_group.h"

namespace strata::comm {
namespace {

// Of a line what must be the same, and the whole as a sentence has it.
struct Line {
  std::string compared, shown;
};

std::vector<Line> lines_of(const std::string& text) {
  constexpr std::string_view kRemark = "  # ";
  std::vector<Line> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start);
    const size_t remark = line.rfind(kRemark);
    if (remark == std::string::npos) {
      lines.push_back({line, line});
    } else {
      const std::string compared = line.substr(0, remark);
      lines.push_back({compared, compared + " (" + line.substr(remark + kRemark.size()) + ")"});
    }
    start = end + 1;
  }
  return lines;
}

// Empty texts when no line differs.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const std::vector<Line> ours = lines_of(a), theirs = lines_of(b);
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i].compared != theirs[i].compared) return {ours[i].shown, theirs[i].shown};
  }
  return {};
}

// A rank has a socket to every other in each of its groups: with a few hundred ranks more files
// than the thousand that systems allow a process unasked. What they allow at most stays; where that
// is too little, the group that lacks one says so.
void allow_files_of(int world_size) {
  constexpr rlim_t kBeside = 1024, kMostGroups = 8;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t wanted = kBeside + kMostGroups * static_cast<rlim_t>(world_size);
  if (files.rlim_cur >= wanted || files.rlim_cur == files.rlim_max) return;
  files.rlim_cur = std::min(wanted, files.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// Of the ranks whose keys these are the first that has said nothing; 0, which serves the store,
// where that is gone.
int first_missing(c10d::Store& store, const std::vector<std::string>& keys) {
  try {
    for (size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) return static_cast<int>(rank);
    }
  } catch (const std::exception&) {
  }
  return 0;
}

}  // namespace

struct Rendezvous::State {
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<SilenceWatch> silence;
  bool has_told_of_tcp = false;
};

int RendezvousOptions::attempt_of_launcher() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count != nullptr ? std::atoi(count) : 0;
}

Rendezvous::Rendezvous(const RendezvousOptions& options)
    : options_(options), state_(std::make_unique<State>()) {
  if (options.world_size == 1) return;
  allow_files_of(options.world_size);
  state_->store = call_roll(options);
}

Rendezvous::~Rendezvous() = default;

c10d::Store& Rendezvous::store() {
  if (!state_->store) {
    throw InternalError(
        "rendezvous: found a store asked for with one rank, expected none needed; "
        "report this as a bug");
  }
  return *state_->store;
}

void Rendezvous::watch_connections() {
  // A machine that is busy still answers: its system does.
  constexpr std::chrono::seconds kLongestSilence{20};
  if (!state_->silence) state_->silence = std::make_unique<SilenceWatch>(kLongestSilence);
}

void Rendezvous::require_same(const std::string& what, const std::string& value,
                              const std::string& lines) {
  if (options_.world_size == 1) return;
  c10d::Store& store = this->store();
  const auto key = [&](const char* of, int rank) {
    return "same/" + what + of + std::to_string(rank);
  };
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.world_size; ++rank) keys.push_back(key("/", rank));
  int differing = -1;
  std::string other, other_lines;
  try {
    if (!lines.empty()) set_text(store, key("/lines/", options_.rank), lines);  // before the value
    set_text(store, key("/", options_.rank), value);
    const std::vector<std::string> values = texts_of(store, keys);
    const auto found = std::ranges::find_if(values, [&](const auto& of) { return of != value; });
    if (found != values.end()) {
      differing = static_cast<int>(found - values.begin());
      other = *found;
      if (!lines.empty()) other_lines = texts_of(store, {key("/lines/", differing)}).front();
    }
    store.add("same/" + what + "/read", 1);
  } catch (const std::exception& e) {
    const std::string reason = e.what();
    throw CommError(
        "{}: found rank {} gone before the run began ({}), expected every rank to take part; look "
        "at the first failing rank's message",
        what, first_missing(store, keys), reason.substr(0, reason.find('\n')));
  }
  if (differing < 0) return;
  await_readers(what);
  const auto [own_line, other_line] = first_difference(lines, other_lines);
  throw ConfigError(
      "{}: found \"{}\" on rank {} but \"{}\" on rank {}, expected the same on all ranks; start "
      "every rank with the same flags, files and environment",
      what, own_line.empty() ? value : own_line, options_.rank,
      own_line.empty() ? other : other_line, differing);
}

void Rendezvous::await_readers(const std::string& what) {
  if (options_.rank != 0) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  try {
    while (store().add("same/" + what + "/read", 0) < options_.world_size &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception&) {
    // Of the store: nobody can read any more.
  }
}

// All groups of a run have the same cause.
void Rendezvous::tell_of_tcp(const std::string& reason) {
  if (!options_.say || std::exchange(state_->has_told_of_tcp, true)) return;
  options_.say(
      fmt::format("warning: shared memory: found that ranks of one machine cannot use it ({}), "
                  "expected them to; what they send goes through TCP, which is slower",
                  reason));
}

std::unique_ptr<Group> Rendezvous::make_group(const std::string& name, std::vector<int> ranks,
                                              const GroupUse& use) {
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(options_.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  if (ranks.size() == 1) return make_single_group();
  std::unique_ptr<Group> group;
  if (options_.shared_memory) {
    std::string reason;
    group = make_shm_group(*this, name, ranks, reason, use.timeout);
    if (!group && !reason.empty()) tell_of_tcp(reason);
  }
  if (!group) group = make_gloo_group(*this, name, ranks, use.timeout);
  if (options_.device.is_cuda()) {
    group = make_device_group(*this, name, ranks, std::move(group));
  }
  return options_.status != nullptr && use.is_watched
             ? watch(std::move(group), name, *options_.status)
             : std::move(group);
}

}  // namespace strata::comm
