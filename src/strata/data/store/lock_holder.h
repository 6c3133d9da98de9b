// Who prepares a set while others wait: what he tells them, and what they make of his silence.
// Owns: the note in the lock's file. Never: the lock (base/file_lock.h).
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "strata/base/file_lock.h"
#include "strata/base/owner_file.h"

namespace strata::data {

struct HolderNote {
  int64_t rows = 0;        // done
  double part = 0;         // of all, from 0 to 1
  uint64_t num_signs = 0;  // of life, so far
  std::optional<ProcessIdentity> process = {};

  std::string text() const;
  static HolderNote read(const std::string& text);
};

// Of the process that holds the lock: gives a sign of life every few seconds, also while it has no
// progress to tell of, until it is stopped, hangs or ends. Threads: one, and its own.
class HolderSigns {
 public:
  explicit HolderSigns(const FileLock& lock);
  ~HolderSigns();
  HolderSigns(const HolderSigns&) = delete;
  HolderSigns& operator=(const HolderSigns&) = delete;
  void tell(int64_t rows, double part);

 private:
  void give_sign(bool is_new);
  void go_on_giving_signs();

  const FileLock& lock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  HolderNote note_;
  bool is_at_end_ = false;
  std::optional<pthread_t> thread_;  // none: the system gave no further one
};

// Seconds without a sign of life.
struct HolderPatience {
  double first_word = 30;  // an NFS client may see a note that late
  double longest = 180;
  // Of a process of this machine that a signal has stopped, or that is gone.
  double first_word_stopped = 2;
  double longest_stopped = 60;
};

// Of a process that waits. Threads: one.
class HolderWatch {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `what`: that is being prepared, for messages. `say` may be empty.
  HolderWatch(std::string what, Say say, const HolderPatience& patience = {});

  // The note, `seconds` after the look before. False: waited long enough, or in vain.
  bool look(const std::string& text, double seconds);

 private:
  std::string holder() const;

  std::string what_;
  Say say_;
  HolderPatience patience_;
  std::string text_;
  HolderNote note_;
  bool is_stopped_ = false;
  double silence_ = 0;
  double next_word_ = 0;  // 0: the first one
};

}  // namespace strata::data
