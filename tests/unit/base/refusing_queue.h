// A queue of transfers over plain calls of which chosen requests fail, as on a file system that
// takes O_DIRECT when a file is opened and refuses it when something is transferred. Never:
// expectations.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <deque>
#include <functional>

#include "strata/base/file_queue.h"

namespace strata::testing {

class RefusingQueue : public FileQueue {
 public:
  // `refusal`: the errno of the request with that number, from 0 on; 0: it is carried out.
  // `num_requests`, where given, counts them.
  explicit RefusingQueue(std::function<int(int)> refusal, int* num_requests = nullptr)
      : FileQueue({.depth = 4}), refusal_(std::move(refusal)), num_requests_(num_requests) {}

  const char* name() const override { return "refusing"; }

 protected:
  void start(const Block& block) override {
    const int error = refusal_(number_++);
    if (num_requests_ != nullptr) *num_requests_ = number_;
    if (error != 0) {
      done_.push_back({block, -error});
      return;
    }
    const auto offset = static_cast<off_t>(block.offset);
    const ssize_t count = block.is_write
                              ? ::pwrite(block.descriptor, block.data, block.size, offset)
                              : ::pread(block.descriptor, block.data, block.size, offset);
    done_.push_back({block, count < 0 ? -errno : count});
  }
  Completion complete() override {
    const Completion first = done_.front();
    done_.pop_front();
    return first;
  }

 private:
  std::function<int(int)> refusal_;
  int* num_requests_;
  int number_ = 0;
  std::deque<Completion> done_;
};

}  // namespace strata::testing
