// Oracle: what a person would have meant, in a folder made for it.
#include "strata/base/near_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NearPath : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"data/train.jsonl", "data/test.jsonl", "data/notes.csv", "models/Llama-3/config.json"}) {
      folder_.put(name, "x");
    }
  }

  std::vector<std::string> near(const std::string& path) {
    std::vector<std::string> found;
    for (const std::string& name : near_paths(folder_.path() / path)) {
      found.push_back(std::filesystem::relative(name, folder_.path()).string());
    }
    return found;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(NearPath, FindsTheNearestNames) {
  EXPECT_THAT(near("data/trian.jsonl"), ElementsAre("data/train.jsonl"));
  EXPECT_THAT(near("data/train.json"), ElementsAre("data/train.jsonl"));
  EXPECT_THAT(near("data/tst.jsonl"), ElementsAre("data/test.jsonl"));
  EXPECT_THAT(near("data/TEST.JSONL"), ElementsAre("data/test.jsonl"));
  EXPECT_THAT(near("data/trest.jsonl"), ElementsAre("data/test.jsonl", "data/train.jsonl"));
}

TEST_F(NearPath, MendsAFolderInTheMiddle) {
  EXPECT_THAT(near("model/llama_3/config.json"), ElementsAre("models"));
  EXPECT_THAT(near("models/llama_3/config.json"), ElementsAre("models/Llama-3/config.json"));
  EXPECT_THAT(near("dta/train.jsonl"), ElementsAre("data/train.jsonl"));
}

TEST_F(NearPath, TakesTheSameNameOfAnotherKind) {
  EXPECT_THAT(near("data/notes.parquet"), ElementsAre("data/notes.csv"));
}

TEST_F(NearPath, IsSilentWhereNothingIsNear) {
  EXPECT_THAT(near("data/conversations.jsonl"), IsEmpty());
  EXPECT_THAT(near("elsewhere/train.jsonl"), IsEmpty());
  EXPECT_THAT(near("data/train.jsonl/more"), IsEmpty());
  EXPECT_THAT(near("data/train.jsonl"), IsEmpty());
  EXPECT_THAT(near_paths(""), IsEmpty());
  EXPECT_EQ(did_you_mean(folder_.path() / "data" / "zzz"), "");
}

TEST_F(NearPath, SaysWhereALinkToNothingLeads) {
  const std::filesystem::path link = folder_.path() / "data" / "gone";
  std::filesystem::create_symlink("/no/such", link);
  EXPECT_EQ(did_you_mean(link),
            "; " + link.string() + " is a link to /no/such, which is not there");
  EXPECT_EQ(did_you_mean(link / "config.json"), did_you_mean(link));
}

TEST_F(NearPath, EndsAMessage) {
  const std::string data = (folder_.path() / "data").string();
  EXPECT_EQ(did_you_mean(data + "/trest.jsonl"),
            "; did you mean " + data + "/test.jsonl or " + data + "/train.jsonl?");
}

}  // namespace
}  // namespace strata
