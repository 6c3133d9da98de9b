// Oracle: what a connection still carries. A socket whose filter takes no packet stands for a
// machine without power, one that nobody reads for a process that is stopped.
#include "strata/comm/silence_watch.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "../base/refused_calls.h"

namespace strata::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Connection {
  Descriptor here, there;
};

Connection connection() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listener.get(), raw, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  ::getsockname(listener.get(), raw, &size);
  Connection made{Descriptor(::socket(AF_INET, SOCK_STREAM, 0)), Descriptor()};
  EXPECT_EQ(::connect(made.here.get(), raw, size), 0);
  made.there = Descriptor(::accept(listener.get(), nullptr, nullptr));
  EXPECT_GE(made.there.get(), 0);
  ::fcntl(made.here.get(), F_SETFL, O_NONBLOCK);
  return made;
}

// Sends until no more is taken.
size_t fill(const Connection& connection) {
  const std::vector<char> some(1 << 16, 'x');
  size_t sent = 0;
  for (ssize_t size = 0; size >= 0;) {
    size = ::send(connection.here.get(), some.data(), some.size(), MSG_NOSIGNAL);
    if (size > 0) sent += static_cast<size_t>(size);
  }
  return sent;
}

void fall_silent(const Descriptor& socket) {
  std::array<sock_filter, 1> take_nothing = {{BPF_STMT(BPF_RET | BPF_K, 0)}};
  const sock_fprog program{.len = take_nothing.size(), .filter = take_nothing.data()};
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

// Whether the connection ends by then.
bool ends_within(const Connection& connection, milliseconds limit) {
  pollfd end{connection.here.get(), POLLRDHUP, 0};
  return ::poll(&end, 1, static_cast<int>(limit.count())) == 1;
}

int option(const Descriptor& socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &size), 0);
  return value;
}

TEST(SilenceWatch, AMachineThatSaysNothingEndsTheConnection) {
  const Connection made = connection();
  const SilenceWatch watch(milliseconds(2000));
  fall_silent(made.there);
  const Clock::time_point start = Clock::now();
  ASSERT_EQ(::send(made.here.get(), "hello", 5, MSG_NOSIGNAL), 5);
  EXPECT_TRUE(ends_within(made, seconds(20)));
  EXPECT_GE(Clock::now() - start, milliseconds(1500));
}

TEST(SilenceWatch, SoDoesOneThatFallsSilentBehindAFullWindow) {
  const Connection made = connection();
  const SilenceWatch watch(milliseconds(2000));
  fill(made);
  std::this_thread::sleep_for(milliseconds(500));
  fall_silent(made.there);
  EXPECT_TRUE(ends_within(made, seconds(20)));
}

TEST(SilenceWatch, AProcessThatDoesNotReadDoesNot) {
  const Connection made = connection();
  const SilenceWatch watch(milliseconds(1000));
  const size_t sent = fill(made);
  EXPECT_FALSE(
      ends_within(made, seconds(8)));  // as long as the system's questions take to grow rare
  std::vector<char> taken(1 << 16);
  for (size_t left = sent; left > 0;) {
    const ssize_t size = ::recv(made.there.get(), taken.data(), std::min(taken.size(), left), 0);
    ASSERT_GT(size, 0) << left;
    left -= static_cast<size_t>(size);
  }
  EXPECT_EQ(::send(made.here.get(), "on", 2, MSG_NOSIGNAL), 2);
}

TEST(SilenceWatch, AsksWhileNothingIsSent) {
  const Connection before = connection();
  const SilenceWatch watch(seconds(21));
  EXPECT_EQ(option(before.here, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(before.here, IPPROTO_TCP, TCP_KEEPIDLE), 7);
  const SilenceWatch shorter(milliseconds(400));
  const Connection after = connection();  // found at the next look
  for (int i = 0; i < 100 && option(after.here, SOL_SOCKET, SO_KEEPALIVE) == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(option(after.here, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_FALSE(ends_within(after, seconds(3)));  // idle is not silent
}

void allow_files(rlim_t count) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = count;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// Regression: the watch's thread met a process that may open no file more, and ended it.
TEST(SilenceWatch, GoesOnAfterAMomentWithoutRoomForAnotherFile) {
  EXPECT_TRUE(testing::holds_in_child([] {
    const SilenceWatch watch(milliseconds(400));
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    allow_files(3);
    std::this_thread::sleep_for(milliseconds(300));  // several looks
    allow_files(before.rlim_cur);
    const Connection made = connection();
    for (int i = 0; i < 100 && option(made.here, SOL_SOCKET, SO_KEEPALIVE) == 0; ++i) {
      std::this_thread::sleep_for(milliseconds(50));
    }
    return option(made.here, SOL_SOCKET, SO_KEEPALIVE) == 1;
  }));
}

}  // namespace
}  // namespace strata::comm
