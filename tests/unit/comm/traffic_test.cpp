// Oracle: the bytes that a collective must send by theory. Ranks are threads of this process, each
// with its own connection.
#include "strata/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "on_ranks.h"
#include "strata/comm/tcp.h"

namespace strata::comm {
namespace {

// The collectives whose theory is counted, a large one each: bytes [size * n] of four.
constexpr const char* kCounted[] = {"all-gather", "reduce-scatter", "all-reduce", "scatter",
                                    "all-to-all"};

void run_counted(Group& group, int which, int64_t n) {
  at::Tensor whole = at::ones({n * group.size()});
  at::Tensor part = at::ones({n});
  switch (which) {
    case 0:
      return group.all_gather(whole, part)->wait();
    case 1:
      return group.reduce_scatter(part, whole)->wait();
    case 2:
      return group.all_reduce(whole)->wait();
    case 4:
      return group.all_to_all(at::empty_like(whole), whole)->wait();
    default:
      return group.scatter(part, group.rank() == 0 ? whole : at::Tensor(), 0)->wait();
  }
}

// What the copying loops counted, summed over the ranks, is what all ranks had to send.
TEST(SharedMemory, WhatIsCopiedIsWhatTheoryAllows) {
  for (int size : {2, 3, 4}) {
    for (int which = 0; which < 5; ++which) {
      std::atomic<int64_t> received{0}, theory{0};
      on_ranks(size, [&](Rendezvous& rendezvous) {
        const auto group = rendezvous.make_group("test");
        ASSERT_EQ(group->received_bytes(), 0);
        run_counted(*group, which, /*n=*/48 * 12345);
        received += group->received_bytes().value();
        theory += group->traffic().sent_bytes;
      });
      EXPECT_GT(theory, 0);
      EXPECT_EQ(received, theory) << kCounted[which] << " of " << size;
    }
  }
}

// What the kernel counted of all connections of this process, which is all ranks.
TEST(Gloo, WhatGoesOverTcpIsWhatTheoryAllows) {
  constexpr int64_t kWords = 400000;
  for (int size : {2, 3, 4}) {
    for (int which = 0; which < 5; ++which) {
      std::atomic<int64_t> theory{0};
      int64_t sent = 0;
      on_ranks(size, /*shared_memory=*/false, [&](Rendezvous& rendezvous) {
        const auto group = rendezvous.make_group("test");
        group->barrier();
        const int64_t before = tcp_sent_bytes();
        group->barrier();
        run_counted(*group, which, kWords);
        theory += group->traffic().sent_bytes;
        group->barrier();
        if (group->rank() == 0) sent = tcp_sent_bytes() - before;
        group->barrier();
      });
      EXPECT_GE(sent, theory) << kCounted[which] << " of " << size;
      // Heads of Gloo's messages, and the barriers.
      EXPECT_LE(sent, theory + theory / 1000 + 4096 * size) << kCounted[which] << " of " << size;
    }
  }
}

}  // namespace
}  // namespace strata::comm
