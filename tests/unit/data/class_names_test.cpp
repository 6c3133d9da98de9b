// Oracle: the metadata and the cards that the datasets library writes, written out; what is no such
// thing names nothing.
#include "strata/data/files/class_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "strata/base/error.h"
#include "strata/data/files/dataset_card.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

class CardClasses : public ::testing::Test {
 protected:
  ClassNames of(const std::string& yaml, const std::string& configuration = "") {
    folder_.put("README.md", "---\n" + yaml + "---\n# A set\n");
    return read_card_classes(folder_.path(), configuration);
  }
  std::string error_of(const std::string& yaml) {
    return strata::testing::message_of<FormatError>([&] { of(yaml); });
  }
  static std::string info(const std::string& type) {
    return "dataset_info:\n  features:\n  - name: x\n    " + type + "\n";
  }

  strata::testing::TemporaryFolder folder_;
};

TEST_F(CardClasses, AreThoseOfClassLabelsAndListsOfSuch) {
  for (const char* type :
       {"dtype: {class_label: {names: {'0': no, '1': yes}}}",
        "class_label: {names: {1: yes, 0: no}}", "dtype: {class_label: {names: [no, yes]}}",
        "list: {class_label: {names: [no, yes]}}", "sequence: {class_label: {names: [no, yes]}}",
        "large_list: {class_label: {names: [no, yes]}}",
        "sequence: {dtype: {class_label: {names: [no, yes]}}}"}) {
    EXPECT_THAT(of(info(type)), ElementsAre(Pair("x", ElementsAre("no", "yes")))) << type;
  }
}

TEST_F(CardClasses, OfAnotherFormAreNone) {
  for (const char* type :
       {"dtype: int64", "dtype: {names: [a]}", "class_label: 3", "class_label: {num_classes: 2}",
        "list: [{name: y, class_label: {names: [a]}}]", "struct: [{name: y}]",
        "dtype: ", "class_label: {names: []}",
        "dtype: {dtype: {list: {list: {list: {list: {list: {list: {list: "
        "{list: {class_label: {names: [a]}}}}}}}}}}}"}) {
    EXPECT_THAT(of(info(type)), ElementsAre(Pair("x", IsEmpty()))) << type;
  }
  EXPECT_THAT(of("dataset_info:\n  features:\n  - &f\n    name: x\n    dtype: *f\n"),
              ElementsAre(Pair("x", IsEmpty())));
  for (const char* yaml :
       {"a: b\n", "dataset_info: 3\n", "dataset_info: [3]\n", "- a\n",
        "dataset_info: {features: {name: x}}\n", "dataset_info: {features: [3]}\n",
        "dataset_info: {features: [{name: [x]}]}\n"}) {
    EXPECT_THAT(of(yaml), IsEmpty()) << yaml;
  }
  EXPECT_THAT(read_card_classes(folder_.path() / "none", ""), IsEmpty());
}

TEST_F(CardClasses, AreThoseOfTheConfiguration) {
  const auto entry = [](const std::string& name, const std::string& column) {
    return "- {config_name: " + name + ", features: [{name: " + column +
           ", class_label: {names: [p]}}]}\n";
  };
  const std::string infos = "dataset_info:\n" + entry("a", "of_a") + entry("b", "of_b") +
                            "- features: [{name: other, class_label: {names: [p]}}]\n";
  const auto is = [](const char* column) { return ElementsAre(Pair(column, ElementsAre("p"))); };
  const std::string configs =
      "configs:\n- {config_name: a, data_files: x}\n- {config_name: b, default: true, data_files: "
      "y}\n";
  EXPECT_THAT(of(configs + infos, "a"), is("of_a"));
  EXPECT_THAT(of(configs + infos), is("of_b"));
  EXPECT_THAT(of(infos, "a"), is("of_a"));
  EXPECT_THAT(of(infos, "default"), is("other"));
  EXPECT_THAT(of(infos, "c"), IsEmpty());
  EXPECT_THAT(of("configs: [{config_name: c, data_files: x}]\n" + infos), IsEmpty());
  // The only one where nothing is chosen.
  const std::string only = "dataset_info: {config_name: a, features: [{name: y, dtype: string}]}\n";
  EXPECT_THAT(of(only), ElementsAre(Pair("y", IsEmpty())));
  EXPECT_THAT(of(only, "b"), IsEmpty());
}

TEST_F(CardClasses, WithoutANameForEachNumberAreErrors) {
  EXPECT_THAT(
      error_of(info("class_label: {names: {0: a, 2: b}}")),
      HasSubstr("README.md:5: found no usable \"names\" of a configuration, expected one for "
                "each number"));
  EXPECT_THAT(error_of(info("class_label: {names: {a: b}}")), HasSubstr("one for each number"));
  EXPECT_THAT(error_of(info("class_label: {names: [a, a]}")), HasSubstr("expected each once"));
  EXPECT_THAT(error_of(info("class_label: {names: [a, [b]]}")), HasSubstr("one for each number"));
}

}  // namespace
}  // namespace strata::data
