// Oracle: the operating system's own answers about sockets; counts of the group that is watched.
#include "strata/comm/tcp.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/comm/fake_group.h"
#include "strata/comm/watched_group.h"

namespace strata::comm {
namespace {

TEST(LocalAddress, IsThatOfTheRoute) {
  EXPECT_EQ(local_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(local_address_towards("127.1.2.3"), "127.0.0.1");
  EXPECT_THROW(local_address_towards("no-such-host.invalid"), CommError);
}

TEST(LocalAddress, LoopbackIsKnown) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) EXPECT_TRUE(is_loopback(address));
  for (const char* address : {"10.0.0.1", "128.0.0.1", "fe80::1"}) {
    EXPECT_FALSE(is_loopback(address));
  }
}

TEST(WatchedGroup, TellsItsCollectivesAndCounts) {
  Status status;
  const auto group = watch(std::make_unique<FakeGroup>(0, 4), "shard0", status);
  at::Tensor part = at::ones({3}), whole = at::empty({12});
  group->all_gather(whole, part)->wait();
  StatusReading reading = read_status(status.page());
  EXPECT_EQ(reading.collective, "all-gather");
  EXPECT_EQ(reading.group, "shard0");
  EXPECT_EQ(reading.number, 1u);
  EXPECT_EQ(reading.waiting_ms, 0) << "it has come back";
  const auto work = group->reduce_scatter(part, whole);
  group->barrier();
  EXPECT_EQ(read_status(status.page()).number, 3u);
  work->wait();
  EXPECT_EQ(read_status(status.page()).number, 2u) << "what is waited for, not what was begun last";
  EXPECT_EQ(group->traffic().all_gathers, 1);
  EXPECT_EQ(group->traffic().sent_bytes, 2 * 3 * 3 * 4);
  EXPECT_EQ(group->transport(), Transport::kFake);
}

}  // namespace
}  // namespace strata::comm
