#include "strata/data/store/lock_holder.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

namespace strata::data {
namespace {

constexpr std::chrono::seconds kBetweenSigns{5};
// The usual 8 MiB count where the data of a process are limited (ulimit -d).
constexpr size_t kStackBytes = size_t{256} << 10;
// A process that was stopped itself has not waited meanwhile.
constexpr double kLongestLook = 1;

}  // namespace

std::string HolderNote::text() const {
  return fmt::format("{} {:.4f} {} {}", rows, part, num_signs,
                     process ? identity_text(*process) : "");
}

HolderNote HolderNote::read(const std::string& text) {
  HolderNote note;
  char* end = nullptr;
  note.rows = std::strtoll(text.c_str(), &end, 10);
  note.part = std::clamp(std::strtod(end, &end), 0.0, 1.0);
  note.num_signs = std::strtoull(end, &end, 10);
  note.process = read_identity(end, "lock");
  return note;
}

HolderSigns::HolderSigns(const FileLock& lock) : lock_(lock) {
  note_.process = own_identity();
  give_sign(
      /*is_new=*/true);  // before those who wait take the note of who was here before for ours
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread{};
  const auto run = [](void* self) -> void* {
    static_cast<HolderSigns*>(self)->go_on_giving_signs();
    return nullptr;
  };
  if (::pthread_create(&thread, &attributes, run, this) == 0) thread_ = thread;
  ::pthread_attr_destroy(&attributes);
}

HolderSigns::~HolderSigns() {
  {
    const std::lock_guard held(mutex_);
    is_at_end_ = true;
  }
  wake_.notify_all();
  if (thread_) ::pthread_join(*thread_, nullptr);
}

void HolderSigns::go_on_giving_signs() {
  std::unique_lock held(mutex_);
  while (!wake_.wait_for(held, kBetweenSigns, [this] { return is_at_end_; })) {
    give_sign(/*is_new=*/true);
    held.unlock();
    lock_.sync_note();
    held.lock();
  }
}

void HolderSigns::give_sign(bool is_new) {
  if (is_new) ++note_.num_signs;
  lock_.leave_note(note_.text());
}

void HolderSigns::tell(int64_t rows, double part) {
  const std::lock_guard held(mutex_);
  note_.rows = rows;
  note_.part = part;
  give_sign(/*is_new=*/false);
}

HolderWatch::HolderWatch(std::string what, Say say, const HolderPatience& patience)
    : what_(std::move(what)), say_(std::move(say)), patience_(patience) {}

std::string HolderWatch::holder() const {
  const std::string name = note_.process ? note_.process->text : "another process";
  return is_stopped_ ? name + ", which a signal has stopped," : name;
}

bool HolderWatch::look(const std::string& text, double seconds) {
  if (text != text_) {
    text_ = text;
    note_ = HolderNote::read(text);
    silence_ = next_word_ = 0;
    return true;
  }
  silence_ += std::min(seconds, kLongestLook);
  // Who has just taken the lock has not said yet who he is: the note is that of the one before.
  const bool is_settled = silence_ >= patience_.first_word_stopped;
  const bool is_gone = is_settled && note_.process && strata::is_gone(*note_.process);
  is_stopped_ = is_settled && note_.process && !is_gone && strata::is_stopped(*note_.process);
  const double longest = is_stopped_ ? patience_.longest_stopped : patience_.longest;
  if (is_gone || silence_ >= longest) {
    if (say_) {
      say_(fmt::format("warning: {}: {} {}; this run prepares these rows itself", what_, holder(),
                       is_gone ? "is gone, and yet holds the lock"
                               : fmt::format("has given no sign for {:.0f} s", silence_)));
    }
    return false;
  }
  if (silence_ < std::max(is_stopped_ ? 0 : patience_.first_word, next_word_)) return true;
  next_word_ = 2 * silence_;
  if (say_) {
    say_(
        fmt::format("warning: {}: waiting for {} to prepare these rows, without a sign of it for "
                    "{:.0f} s; from {:.0f} s on this run prepares them itself",
                    what_, holder(), silence_, longest));
  }
  return true;
}

}  // namespace strata::data
