// Oracle: the metadata that the datasets library writes, written out; what is no such thing names
// nothing.
#include "strata/data/files/class_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

ClassNames names_in(const std::string& features) {
  return read_class_names(R"({"info": {"features": {)" + features + "}}}");
}

TEST(ClassNames, AreThoseOfClassLabelsAndListsOfSuch) {
  EXPECT_THAT(names_in(R"("text": {"dtype": "string", "_type": "Value"},
                  "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
                  "list": {"feature": {"names": ["p"], "_type": "ClassLabel"}, "_type": "List"},
                  "sequence": {"feature": {"num_classes": 1, "names": ["q"], "id": null,
                    "_type": "ClassLabel"}, "length": -1, "id": null, "_type": "Sequence"},
                  "old": [{"names": ["r"], "_type": "ClassLabel"}])"),
              ElementsAre(Pair("label", ElementsAre("no", "yes")), Pair("list", ElementsAre("p")),
                          Pair("old", ElementsAre("r")), Pair("sequence", ElementsAre("q"))));
}

TEST(ClassNames, OfAnotherFormAreNone) {
  for (const char* feature :
       {R"({"names": ["a"], "_type": "Value"})", R"({"_type": "ClassLabel"})",
        R"({"names": [], "_type": "ClassLabel"})", R"({"names": [1], "_type": "ClassLabel"})",
        R"({"names": "ab", "_type": "ClassLabel"})", R"({"names": ["a"]})", "null", "[]", "7",
        R"([{"names": ["a"], "_type": "ClassLabel"}, 1])", R"({"a": {"names": ["a"]}})"}) {
    EXPECT_THAT(names_in(std::string(R"("x": )") + feature), IsEmpty()) << feature;
  }
  for (const char* metadata : {"", "{", "[]", "null", R"({"info": 1})", R"({"info": {}})",
                               R"({"info": {"features": []}})", "\xff"}) {
    EXPECT_THAT(read_class_names(metadata), IsEmpty()) << metadata;
  }
}

}  // namespace
}  // namespace strata::data
