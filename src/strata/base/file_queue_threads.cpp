// Requests served by threads that read and write at offsets. For kernels without io_uring. Where
// the system gives no thread, the caller serves them while it waits.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "strata/base/file_queue.h"

namespace strata {
namespace {

class ThreadQueue final : public FileQueue {
 public:
  explicit ThreadQueue(const FileQueueOptions& options) : FileQueue(options) {
    constexpr int kMostThreads = 8;
    const int num_threads = std::clamp(options.depth, 1, kMostThreads);
    threads_.reserve(static_cast<size_t>(num_threads));
    try {
      for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::exception&) {  // no more threads: those that run do the work of all
    }
  }

  ~ThreadQueue() override {
    drain();
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* name() const override { return "threads"; }

 protected:
  void start(const Block& block) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(block);
    }
    has_work_.notify_one();
  }

  Completion complete() override {
    if (threads_.empty()) return serve_in_place();
    std::unique_lock lock(mutex_);
    has_result_.wait(lock, [this] { return !done_.empty(); });
    const Completion completion = done_.front();
    done_.pop_front();
    return completion;
  }

 private:
  static int64_t perform(const Block& block) {
    const auto offset = static_cast<off_t>(block.offset);
    const ssize_t count = block.is_write
                              ? ::pwrite(block.descriptor, block.data, block.size, offset)
                              : ::pread(block.descriptor, block.data, block.size, offset);
    return count < 0 ? -errno : count;
  }

  Completion serve_in_place() {
    const Block block = waiting_.front();
    waiting_.pop_front();
    return {block, perform(block)};
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [this] { return is_ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Block block = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int64_t result = perform(block);
      lock.lock();
      done_.push_back({block, result});
      has_result_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_work_, has_result_;
  std::deque<Block> waiting_;
  std::deque<Completion> done_;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileQueue> open_thread_queue(const FileQueueOptions& options) {
  return std::make_unique<ThreadQueue>(options);
}

}  // namespace strata
