// Oracle: the file as the plain read call sees it, and the errors of the operating system.
#include "strata/base/file_queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "refused_calls.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
namespace {

using strata::testing::holds_in_child;
using strata::testing::message_of;
using strata::testing::refuse_call;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;
using Backend = FileQueueOptions::Backend;

// Memory that direct transfers accept.
class Buffer {
 public:
  explicit Buffer(size_t size, uint32_t seed = 0)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, size))), size_(size) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < size; i += 4) {
      const uint32_t value = static_cast<uint32_t>(random());
      std::memcpy(data_ + i, &value, 4);
    }
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  std::span<std::byte> span() { return {data_, size_}; }
  std::string text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::byte* data_;
  size_t size_;
};

// One request at a time, few, and one that fits all.
class Queues : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  std::unique_ptr<FileQueue> open() const {
    return FileQueue::open({.backend = std::get<0>(GetParam()),
                            .block_bytes = kDirectAlignment,
                            .depth = std::get<1>(GetParam())});
  }
  TemporaryFolder folder_;
};

TEST_P(Queues, EveryByteArrivesWhereItBelongs) {
  constexpr size_t kPiece = 23 * kDirectAlignment;
  constexpr int kPieces = 20;
  DirectFile file(folder_ / "f", kPieces * kPiece);
  auto queue = open();
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<FileQueue::Ticket> tickets;
  std::string expected;
  for (int i = 0; i < kPieces; ++i) {
    buffers.push_back(std::make_unique<Buffer>(kPiece, 100 + i));
    expected += buffers.back()->text();
    tickets.push_back(queue->write(file, buffers.back()->span(), i * kPiece));
  }
  for (size_t i = tickets.size(); i-- > 0;) queue->wait(tickets[i]);  // in any order
  EXPECT_TRUE(read_file(file.path()) == expected);
  Buffer back(kPieces * kPiece);
  queue->wait(queue->read(file, back.span(), 0));
  EXPECT_TRUE(back.text() == expected);
  Buffer middle(2 * kDirectAlignment);
  queue->wait(queue->read(file, middle.span(), 5 * kDirectAlignment));
  EXPECT_TRUE(middle.text() == expected.substr(5 * kDirectAlignment, 2 * kDirectAlignment));
  EXPECT_EQ(queue->num_in_flight(), 0U);
}

TEST_P(Queues, AFileThatBecameShorterIsAnError) {
  DirectFile file(folder_ / "f", 64 * kDirectAlignment);
  ASSERT_EQ(::truncate(file.path().c_str(), 3 * kDirectAlignment), 0);
  auto queue = open();
  Buffer buffer(8 * kDirectAlignment);
  const auto ticket = queue->read(file, buffer.span(), 0);
  const std::string message = message_of<IoError>([&] { queue->wait(ticket); });
  EXPECT_THAT(message, HasSubstr(file.path().string()));
  EXPECT_THAT(message, HasSubstr("when reading 32768 bytes at 0"));
}

TEST_P(Queues, AFullDiskIsAnErrorThatSaysWhatToDo) {
  DirectFile file(folder_ / "f", 64 * kDirectAlignment);
  auto queue = open();
  // A limit on the size of files stands in for the full disk; it takes the same way.
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{2 * kDirectAlignment, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  Buffer buffer(8 * kDirectAlignment);
  const auto ticket = queue->write(file, buffer.span(), 0);
  const std::string message = message_of<IoError>([&] { queue->wait(ticket); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message, HasSubstr("file too large when writing 32768 bytes"));
  EXPECT_THAT(message, HasSubstr("free space there"));
  // The queue goes on working.
  queue->wait(queue->write(file, buffer.span(), 0));
}

TEST_P(Queues, DrainingForgetsWhatIsInFlight) {
  DirectFile file(folder_ / "f", 512 * kDirectAlignment);
  auto queue = open();
  Buffer buffer(512 * kDirectAlignment);
  const auto ticket = queue->read(file, buffer.span(), 0);
  queue->drain();
  EXPECT_EQ(queue->num_in_flight(), 0U);
  EXPECT_THROW(queue->wait(ticket), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Queues,
                         ::testing::Combine(::testing::Values(Backend::kAutomatic,
                                                              Backend::kThreads),
                                            ::testing::Values(1, 3, 64)));

TEST(DirectFile, StartsAsZerosAndNeverReplacesAFile) {
  TemporaryFolder folder;
  DirectFile file(folder / "f", 3 * kDirectAlignment);
  EXPECT_TRUE(read_file(file.path()) == std::string(3 * kDirectAlignment, '\0'));
  EXPECT_THAT(message_of<IoError>([&] { DirectFile(folder / "f", 1); }), HasSubstr("file exists"));
}

TEST(DirectFile, MoreThanTheDiskHoldsIsAnErrorAndLeavesNothing) {
  TemporaryFolder folder;
  const std::string message =
      message_of<IoError>([&] { DirectFile(folder / "f", uint64_t{1} << 60); });
  EXPECT_THAT(message, HasSubstr("when reserving 1152921504606846976 bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
}

TEST(FileQueue, ThreadsTakeOverWhereTheKernelRefusesIoUring) {
  for (const int error : {ENOSYS, EPERM}) {
    TemporaryFolder folder;
    EXPECT_TRUE(holds_in_child([&] {
      refuse_call(SYS_io_uring_setup, error);
      auto queue = FileQueue::open();
      DirectFile file(folder / "f", kDirectAlignment);
      Buffer buffer(kDirectAlignment, 5);
      queue->wait(queue->write(file, buffer.span(), 0));
      return std::string(queue->name()) == "threads" && read_file(file.path()) == buffer.text() &&
             !message_of<IoError>([] { FileQueue::open({.backend = Backend::kIoUring}); }).empty();
    }));
  }
}

// Writes and reads through threads, many requests at once.
bool transfers_by_threads(const std::filesystem::path& path) {
  DirectFile file(path, 16 * kDirectAlignment);
  Buffer buffer(16 * kDirectAlignment, 5), back(16 * kDirectAlignment), rest(16 * kDirectAlignment);
  const auto queue = FileQueue::open({Backend::kThreads, kDirectAlignment, /*depth=*/8});
  queue->wait(queue->write(file, buffer.span(), 0));
  queue->wait(queue->read(file, back.span(), 0));
  queue->read(file, rest.span(), 0);  // the queue's end takes it along
  return back.text() == buffer.text();
}

TEST(FileQueue, TransfersWhereNoThreadCanBeStarted) {
  const TemporaryFolder folder;
  EXPECT_TRUE(holds_in_child([&] {
    refuse_call(SYS_clone, EAGAIN);
    refuse_call(SYS_clone3, EAGAIN);
    return transfers_by_threads(folder / "f");
  }));
}

// Leaves this process, for good, address space for the stack of a single thread: no matter who runs
// it or what else that user runs.
void allow_one_more_thread() {
  constexpr size_t kStackBytes = size_t{512} << 20;  // beyond what is kept of threads that ended
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_setattr_default_np(&attributes);
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  limit.rlim_cur = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + kStackBytes * 3 / 2;
  ::setrlimit(RLIMIT_AS, &limit);
}

bool starts_one_thread_of_two() {
  std::promise<void> end;
  std::thread first([&] { end.get_future().wait(); });
  bool is_alone = false;
  try {
    std::thread([] {}).join();
  } catch (const std::system_error&) {
    is_alone = true;
  }
  end.set_value();
  first.join();
  return is_alone;
}

// Regression: the first thread was still running when the second could not be started, which ended
// the process.
TEST(FileQueue, TransfersWhereNotAllThreadsCanBeStarted) {
  const TemporaryFolder folder;
  EXPECT_TRUE(holds_in_child([&] {
    allow_one_more_thread();
    return starts_one_thread_of_two() && transfers_by_threads(folder / "f");
  }));
}

// Regression: the request stayed in the ring and was sent with the next, when its memory was gone.
TEST(FileQueue, ARequestThatTheKernelDidNotTakeIsNeverSent) {
  if (std::string(FileQueue::open()->name()) != "io_uring") return;  // a kernel without it
  TemporaryFolder folder;
  EXPECT_TRUE(holds_in_child([&] {
    auto queue = FileQueue::open();
    DirectFile file(folder / "f", 8 * kDirectAlignment);
    Buffer early(kDirectAlignment, 5), refused(kDirectAlignment, 6), late(kDirectAlignment, 7);
    const auto ticket = queue->write(file, early.span(), 0);
    refuse_call(SYS_io_uring_enter, ENOMEM, /*second_argument=*/1);  // that many requests at once
    const auto start = [&](Buffer& buffer) {
      return message_of<IoError>([&] { queue->write(file, buffer.span(), 4 * kDirectAlignment); });
    };
    const bool is_told = start(refused).find("cannot allocate memory") != std::string::npos &&
                         start(late).find("starts no more") != std::string::npos;
    queue->wait(ticket);  // what the kernel took is completed
    queue.reset();
    return is_told &&
           read_file(file.path()) == early.text() + std::string(7 * kDirectAlignment, '\0');
  }));
}

// Gives the latest request back first, half done, and takes none any more after that.
class BreakingQueue : public FileQueue {
 public:
  BreakingQueue() : FileQueue({}) {}
  ~BreakingQueue() override { drain(); }
  const char* name() const override { return "breaking"; }
  size_t num_requests() const { return requests_.size(); }

 protected:
  void start(const Block& block) override {
    if (is_broken_) throw IoError("breaking: found a request, expected none");
    requests_.push_back(block);
  }
  Completion complete() override {
    const Block last = requests_.back();
    requests_.pop_back();
    const auto size = static_cast<int64_t>(last.size);
    return {last, std::exchange(is_broken_, true) ? size : size / 2};
  }

 private:
  std::vector<Block> requests_;
  bool is_broken_ = false;
};

// Regression: the rest of the second transfer could not be started, so that the first one's request
// was left on its way to memory that goes.
TEST(FileQueue, DrainingWaitsForAllWhateverBecomesOfOne) {
  const TemporaryFolder folder;
  DirectFile file(folder / "f", 4 * kDirectAlignment);
  Buffer first(2 * kDirectAlignment), second(2 * kDirectAlignment);
  BreakingQueue queue;
  queue.read(file, first.span(), 0);
  queue.read(file, second.span(), 2 * kDirectAlignment);
  queue.drain();
  EXPECT_EQ(queue.num_requests(), 0U);
}

TEST(FileSystem, MemoryIsToldFromDisk) {
  EXPECT_TRUE(is_in_memory("/dev/shm"));
  EXPECT_FALSE(is_in_memory("/proc"));
  EXPECT_THROW(is_in_memory("/no/such/folder"), IoError);
}

}  // namespace
}  // namespace strata
