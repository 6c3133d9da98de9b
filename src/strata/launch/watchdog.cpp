// Pages, /proc and the signal that asks for stacks.
#include "strata/launch/watchdog.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "strata/base/error.h"

namespace strata::launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// From when on it is told that ranks wait for others, and how often where waits stay short.
constexpr milliseconds kNotableWait{60'000};
constexpr std::chrono::minutes kBetweenWords{10};
constexpr milliseconds kForAThread{300};
constexpr milliseconds kForARank{4000};

std::string line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

bool blocks_the_signal(const fs::path& task) {
  std::ifstream stream(task / "status");
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("SigBlk:")) continue;
    const uint64_t mask = std::strtoull(line.c_str() + 7, nullptr, 16);
    return (mask >> (stack_trace_signal() - 1) & 1) != 0;
  }
  return true;
}

// "program(_ZN6strata3fooEv+0x1a) [0x55]" with the name as it is written in the source.
std::string with_readable_name(const std::string& line) {
  const size_t open = line.find('(');
  const size_t plus = line.find('+', open);
  if (open == std::string::npos || plus == std::string::npos || plus == open + 1) return line;
  const std::string mangled = line.substr(open + 1, plus - open - 1);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? line.substr(0, open + 1) + name.get() + line.substr(plus) : line;
}

std::string with_readable_names(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    result += (line.starts_with("thread ") ? line : "  " + with_readable_name(line)) + "\n";
  }
  return result;
}

std::string text_from(int descriptor, off_t begin) {
  struct stat file {};
  if (::fstat(descriptor, &file) != 0 || file.st_size <= begin) return "";
  std::string text(static_cast<size_t>(file.st_size - begin), '\0');
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

std::string joined(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

bool is_same_place(const StatusReading& a, const StatusReading& b) {
  return a.group == b.group && a.number == b.number && a.collective == b.collective;
}

std::string place_of(const Observation& observed) {
  const StatusReading& reading = observed.reading;
  std::string text = reading.step > 0 ? fmt::format("in step {}", reading.step)
                                      : std::string("before the first step");
  if (!reading.phase.empty()) text += fmt::format(" ({})", reading.phase);
  if (reading.waiting_ms > 0) {
    text += fmt::format(", waiting in {} {} of group {}", reading.collective, reading.number,
                        reading.group);
  }
  if (observed.state == 'T') text += ", stopped by a signal";
  if (observed.state == 'D') text += ", waiting for a device or a file system";
  return text;
}

// The rank that waits in the collective that all should have reached. One that is stopped waits for
// nobody, even where its page says so, and of one group the furthest collective counts.
const Observation* front_of_the_wait(const std::vector<Observation>& ranks) {
  const auto waits = [](const Observation& each) {
    return each.reading.waiting_ms > 0 && each.state != 'T' && each.state != 'D';
  };
  const Observation* front = nullptr;
  for (const Observation& each : ranks) {
    if (waits(each) && (!front || each.reading.waiting_ms > front->reading.waiting_ms)) {
      front = &each;
    }
  }
  for (const Observation& each : ranks) {
    if (waits(each) && each.reading.group == front->reading.group &&
        each.reading.number > front->reading.number) {
      front = &each;
    }
  }
  return front;
}

// Ranks that wait for others in a collective.
struct Wait {
  std::vector<int> waiting, missing;
  std::vector<std::string> elsewhere;  // "rank 1 in step 3 (training)", of each that is missing
  std::string where;
  double seconds = 0;

  const char* verb() const { return waiting.size() == 1 ? "waits" : "wait"; }
};

// Nothing: no rank waits for longer than `limit`.
std::optional<Wait> find_wait(const std::vector<Observation>& ranks, milliseconds limit) {
  const Observation* longest = front_of_the_wait(ranks);
  if (!longest || longest->reading.waiting_ms <= limit.count()) return std::nullopt;
  const StatusReading& place = longest->reading;
  Wait wait;
  for (const Observation& each : ranks) {
    const bool is_there = each.reading.waiting_ms > 0 && is_same_place(each.reading, place);
    // One that was stopped inside takes no part any more.
    if (is_there && each.state != 'T') {
      wait.waiting.push_back(each.rank);
    } else {
      wait.missing.push_back(each.rank);
      wait.elsewhere.push_back(fmt::format("rank {} {}", each.rank, place_of(each)));
    }
  }
  wait.where = fmt::format("{} {} of group {}{}", place.collective, place.number, place.group,
                           place.step > 0 ? fmt::format(" (step {})", place.step) : std::string());
  wait.seconds = static_cast<double>(place.waiting_ms) / 1000;
  return wait;
}

}  // namespace

WatchedRank::WatchedRank(int rank)
    : rank_(rank),
      status_(::memfd_create("strata-status", MFD_CLOEXEC)),
      stack_(::memfd_create("strata-stack", MFD_CLOEXEC)) {
  if (status_.get() < 0 || ::ftruncate(status_.get(), static_cast<off_t>(kStatusBytes)) != 0)
    return;
  void* page = ::mmap(nullptr, kStatusBytes, PROT_READ | PROT_WRITE, MAP_SHARED, status_.get(),
                      /*offset=*/0);
  if (page != MAP_FAILED) page_ = static_cast<StatusPage*>(page);
}

WatchedRank::~WatchedRank() {
  if (page_ != nullptr) ::munmap(page_, kStatusBytes);
}

WatchedRank::WatchedRank(WatchedRank&& other) noexcept
    : rank_(other.rank_),
      status_(std::move(other.status_)),
      stack_(std::move(other.stack_)),
      page_(std::exchange(other.page_, nullptr)) {}

StatusReading WatchedRank::read() const {
  return page_ != nullptr ? read_status(*page_) : StatusReading();
}

std::string WatchedRank::stacks(int group) const {
  const int process = read().process;
  if (process <= 0 || ::getpgid(process) != group) return "no process that shares its status\n";
  const char state = state_of_process(process);
  std::string text = fmt::format("process {}, state {}\n", process, state);
  const auto deadline = Clock::now() + kForARank;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    const fs::path& task = entry.path();
    const int thread = std::atoi(task.filename().c_str());
    const std::string name = line_of(task / "comm");
    const char* reason = state == 'T'              ? "stopped"
                         : blocks_the_signal(task) ? "blocks signals"
                                                   : nullptr;
    if (reason == nullptr && Clock::now() < deadline) {
      const uint32_t before = page_->traces.load();
      const off_t begin = ::lseek(stack_.get(), 0, SEEK_END);
      ::syscall(SYS_tgkill, process, thread, stack_trace_signal());
      const auto limit = Clock::now() + kForAThread;
      while (page_->traces.load() == before && Clock::now() < limit) {
        std::this_thread::sleep_for(milliseconds(2));
      }
      if (page_->traces.load() != before) {
        text += with_readable_names(text_from(stack_.get(), begin));
        continue;
      }
    }
    text += fmt::format("thread {} ({}): no stack, {}; in the system: {}\n", thread, name,
                        reason != nullptr ? reason : "no answer", line_of(task / "wchan"));
  }
  return text;
}

char state_of_process(int process) {
  const std::string line = line_of(fmt::format("/proc/{}/stat", process));
  const size_t end = line.rfind(") ");  // of the name, which may hold anything
  return end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
}

std::optional<std::string> describe_hang(const std::vector<Observation>& ranks,
                                         std::chrono::milliseconds limit) {
  const std::optional<Wait> wait = find_wait(ranks, limit);
  if (!wait) return std::nullopt;
  if (wait->missing.empty()) {
    return fmt::format(
        "hang: found {} of this machine waiting in {} for {:.1f} s, expected the ranks of the "
        "other "
        "machines there too; see what those report",
        joined(wait->waiting), wait->where, wait->seconds);
  }
  return fmt::format(
      "hang: found {}, not in {} where {} {} for {:.1f} s, expected {} there within {:g} s "
      "(hang_timeout)",
      fmt::join(wait->elsewhere, "; "), wait->where, joined(wait->waiting), wait->verb(),
      wait->seconds, joined(wait->missing), static_cast<double>(limit.count()) / 1000);
}

std::optional<std::string> describe_wait(const std::vector<Observation>& ranks,
                                         std::chrono::milliseconds notable,
                                         std::chrono::milliseconds limit) {
  const std::optional<Wait> wait = find_wait(ranks, notable);
  if (!wait) return std::nullopt;
  return fmt::format("{} {} for {:.0f} s in {}: {}; at {:g} s all ranks are stopped (hang_timeout)",
                     joined(wait->waiting), wait->verb(), wait->seconds, wait->where,
                     wait->missing.empty() ? "ranks of other machines are not there"
                                           : fmt::format("{}", fmt::join(wait->elsewhere, "; ")),
                     static_cast<double>(limit.count()) / 1000);
}

std::optional<std::string> WaitWords::next(const std::vector<Observation>& ranks,
                                           milliseconds limit, Clock::time_point now) {
  const milliseconds least = std::min(kNotableWait, limit / 2);
  const std::optional<Wait> wait = find_wait(ranks, least);
  if (!wait) return std::nullopt;
  const auto lasted =
      std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(wait->seconds));
  const bool is_another = now - lasted > told_at_;
  if (is_another && now - told_at_ >= kBetweenWords) told_ = milliseconds(0);
  const milliseconds notable = std::max(least, 2 * told_);
  std::optional<std::string> word = describe_wait(ranks, notable, limit);
  if (word) {
    told_ = notable;
    while (2 * told_ <= lasted) told_ *= 2;
    told_at_ = now;
  }
  return word;
}

}  // namespace strata::launch
