// Oracle: what each rank must know of the others, by hand. Ranks are threads of this process.
#include "strata/comm/agreement.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "on_ranks.h"
#include "strata/base/error.h"

namespace strata::comm {
namespace {

TEST(Agreement, OneFailureFailsAll) {
  on_ranks(3, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    try {
      all_or_nothing(*group, "saving", [&] {
        if (group->rank() == 1) throw IoError(std::string("disk: full"));
      });
      ADD_FAILURE() << "rank " << group->rank() << " went on";
    } catch (const IoError&) {
      EXPECT_EQ(group->rank(), 1);
    } catch (const CommError& e) {
      EXPECT_NE(group->rank(), 1);
      EXPECT_NE(std::string(e.what()).find("rank 1"), std::string::npos);
    }
    // As long as rank 0's: a list of files, or nothing.
    for (const std::string& text :
         {std::string("hello"), std::string(), std::string(100'000, 'x')}) {
      EXPECT_EQ(broadcast_string(*group, group->rank() == 0 ? text : "other"), text);
    }
  });
}

// Rank 1 fails before a collective of the work that rank 0 is in.
TEST(Agreement, AFailureAmidCollectivesIsNotLostInTheirDifference) {
  on_ranks(2, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    try {
      all_or_nothing(*group, "loading", [&] {
        if (group->rank() == 1) throw IoError(std::string("disk: full"));
        at::Tensor words = at::zeros({7});
        group->broadcast(words, 0)->wait();
        group->broadcast(words, 0)->wait();
      });
      ADD_FAILURE() << "rank " << group->rank() << " went on";
    } catch (const IoError& e) {
      EXPECT_EQ(group->rank(), 1);
      EXPECT_STREQ(e.what(), "disk: full");
    } catch (const CommError&) {
      EXPECT_EQ(group->rank(), 0);
    }
  });
}

}  // namespace
}  // namespace strata::comm
