// Oracle: an error that names what differs. Ranks are threads of this process.
#include "strata/comm/rendezvous.h"

#include <gtest/gtest.h>

#include <string>

#include "on_ranks.h"
#include "strata/base/error.h"

namespace strata::comm {
namespace {

TEST(Rendezvous, DifferentSettingsAreFoundBeforeTheFirstCollective) {
  try {
    on_ranks(2, [](Rendezvous& rendezvous) {
      rendezvous.require_same("settings", rendezvous.options().rank == 0 ? "a" : "b");
    });
    FAIL() << "went on with different settings";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("settings"), std::string::npos);
  }
}

}  // namespace
}  // namespace strata::comm
