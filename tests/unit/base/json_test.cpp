// Oracle: golden texts of Python's json module, and round trips.
#include "strata/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/exact_json.h"

namespace strata {
namespace {

using ::testing::EndsWith;
using testing::message_of;
using ::testing::StartsWith;

std::string error_of(const std::string& text, const JsonOptions& options = {}) {
  return message_of<FormatError>([&] { parse_json(text, "x.json", options); });
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const Json json = parse_json(
      " {\"z\": [1, -2, 1.5, 1e3, true, false, null, \"\\u00e9\\ud83d\\ude00\\n\\/\"],\r\n\t\"a\": "
      "{}} ",
      "x");
  EXPECT_EQ(json.begin().key(), "z");  // the order of the file
  EXPECT_EQ(json["z"][0].get<int>(), 1);
  EXPECT_TRUE(json["z"][0].is_number_unsigned());
  EXPECT_EQ(json["z"][1].get<int>(), -2);
  EXPECT_EQ(json["z"][3].get<double>(), 1000.0);
  EXPECT_EQ(json["z"][7].get<std::string>(), "\xc3\xa9\xf0\x9f\x98\x80\n/");
  EXPECT_TRUE(json["a"].is_object());
}

TEST(ParseJson, NumbersAsPythonReadsThem) {
  EXPECT_EQ(parse_json("18446744073709551615", "x").get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(parse_json("-9223372036854775808", "x").get<int64_t>(), INT64_MIN);
  EXPECT_EQ(parse_json("18446744073709551616", "x").get<double>(), 0x1p64);
  EXPECT_EQ(parse_json("1e999", "x").get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_json("1e-999", "x").get<double>(), 0.0);
  EXPECT_TRUE(std::isnan(parse_json("NaN", "x").get<double>()));
  EXPECT_EQ(parse_json("[-Infinity]", "x")[0].get<double>(),
            -std::numeric_limits<double>::infinity());
}

// Python's integers have no end, and its limit of digits.
TEST(ParseJsonExactly, KeepsBigIntegers) {
  const std::string text =
      "[18446744073709551616, -9223372036854775809, 18446744073709551615, -0, 1e30]";
  const Json list = parse_json_exactly(text, "x");
  EXPECT_EQ(big_integer(list[0]), "18446744073709551616");
  EXPECT_EQ(big_integer(list[1]), "-9223372036854775809");
  EXPECT_EQ(list[2].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(dump_python(list, -1),
            "[18446744073709551616, -9223372036854775809, 18446744073709551615, 0, 1e+30]");
  for (const size_t i : {2, 3, 4}) EXPECT_FALSE(big_integer(list[i]));
  const std::string longest = "-" + std::string(4300, '9');
  EXPECT_EQ(big_integer(parse_json_exactly(longest, "x")), longest);
  EXPECT_EQ(message_of<FormatError>(
                [] { parse_json_exactly("[1" + std::string(4300, '9') + "]", "x.json"); }),
            "x.json:1:2: found an integer of 4301 digits, expected at most 4300; correct the file");
  EXPECT_EQ(message_of<FormatError>([&] { parse_json_exactly(longest + "9", "x.json"); }),
            "x.json:1:1: found an integer of 4301 digits, expected at most 4300; correct the file");
}

TEST(ParseJson, RepeatedKeys) {
  EXPECT_EQ(dump_python(parse_json(R"({"a":1,"b":2,"a":3})", "x"), -1, false),
            R"({"a": 3, "b": 2})");
  EXPECT_EQ(error_of(R"({"a":1,"b":2,"a":3})", {.duplicates = DuplicateKeys::kReject}),
            "x.json:1:14: found the key \"a\" again, expected every key once; correct the file");
}

TEST(ParseJson, LargeObjectsAreNotSearchedForEveryKey) {
  std::string text = "{";
  constexpr int kKeys = 150000;
  for (int i = 0; i < kKeys; ++i) text += fmt::format("\"key{}\":{},", i, i);
  text += "\"key7\":-1}";
  const auto start = std::chrono::steady_clock::now();
  const Json json = parse_json(text, "x");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(json.size(), static_cast<size_t>(kKeys));
  EXPECT_EQ(json["key7"].get<int>(), -1);
}

TEST(ParseJson, ErrorsCarryLineAndColumn) {
  struct Case {
    const char* text;
    const char* start;
  };
  const Case cases[] = {
      {"", "x.json:1:1: found the end of the text, expected a value"},
      {"{\"a\": 1,\n  \"b\" 2}", "x.json:2:7: found '2', expected ':' after the key"},
      {"{\"a\": 1,\n}", "x.json:2:1: found '}', expected a key in double quotes"},
      {"[1 2]", "x.json:1:4: found '2', expected ',' or ']'"},
      {"[1,]", "x.json:1:4: found ']', expected a value"},
      {"{\"\xc3\xa9\": x}", "x.json:1:7: found 'x', expected a value"},
      {"[\"abc\n\"]", "x.json:1:6: found the end of the line, expected '\"' at the end"},
      {"[\"a\\x\"]", "x.json:1:5: found 'x', expected one of"},
      {"[\"\\u12g4\"]", "x.json:1:7: found 'g', expected four hexadecimal digits"},
      {"[\"\\ud800\"]", "x.json:1:3: found an unpaired surrogate"},
      {"[\"\\ud800\\u0041\"]", "x.json:1:3: found an unpaired surrogate"},
      {"[01]", "x.json:1:3: found '1', expected no digit after a leading zero"},
      {"[1.]", "x.json:1:4: found ']', expected a digit"},
      {"[-]", "x.json:1:3: found ']', expected a digit"},
      {"{} {}", "x.json:1:4: found '{', expected the end of the document"},
      {"[\"\xff\"]", "x.json:1:3: found the byte 0xff, which is no valid utf-8"},
      {"[\"\xc0\x80\"]", "x.json:1:3: found the byte 0xc0, which is no valid utf-8"},
      {"[\"\xed\xa0\x80\"]", "x.json:1:3: found the byte 0xed, which is no valid utf-8"},
      {"{'a': 1}", "x.json:1:2: found ''', expected a key in double quotes"},
      {"[tru]", "x.json:1:2: found 't', expected a value"},
  };
  for (const Case& c : cases) EXPECT_THAT(error_of(c.text), StartsWith(c.start)) << c.text;
  EXPECT_THAT(error_of("[1", {.first_line = 17}), StartsWith("x.json:17:3: found the end"));
}

TEST(ParseJson, OtherFormsOfJsonGetAdvice) {
  for (const char* text :
       {"{\"a\": 1, // one\n}", "{\n/* a */\n}", "{\"a\": 1}\n# end", "[1, // one\n2]"}) {
    EXPECT_THAT(error_of(text), EndsWith("; JSON has no comments: remove it")) << text;
  }
  for (const char* text : {"{\"a\": 1,\n}", "[1, ]", "[{\"a\": 1},]"}) {
    EXPECT_THAT(error_of(text), EndsWith("; JSON has no comma after the last entry: remove it"))
        << text;
  }
  for (const char* text : {"[1 2]", "{]", "[}", "{\"a\": ]"}) {
    EXPECT_THAT(error_of(text), EndsWith("; correct the file")) << text;
  }
}

TEST(ParseJson, DepthIsLimited) {
  const std::string deep = std::string(100000, '[');
  EXPECT_THAT(error_of(deep), StartsWith("x.json:1:514: found more than 512 nested levels"));
  EXPECT_EQ(error_of(std::string(512, '[') + std::string(512, ']')), "");
}

// Oracle: the text that was written down. Words of eight bytes begin anywhere in it.
TEST(ParseJson, StringsHoldWhatIsWrittenWhereverItStands) {
  const std::pair<std::string, std::string> kParts[] = {{"\\\"", "\""},
                                                        {"\\\\", "\\"},
                                                        {"\\n", "\n"},
                                                        {"\u00e9", "\u00e9"},
                                                        {"\U0001f389", "\U0001f389"},
                                                        {"\x7f", "\x7f"},
                                                        {"~ !", "~ !"},
                                                        {"", ""}};
  for (size_t before = 0; before < 20; ++before) {
    for (size_t behind = 0; behind < 20; ++behind) {
      for (const auto& [written, meant] : kParts) {
        const std::string a(before, 'a'), b(behind, '[');
        EXPECT_EQ(parse_json("[\"" + a + written + b + written + "\"]", "x")[0],
                  a + meant + b + meant);
      }
      for (const char wrong : {'\n', '\x1f', '\0', '\x80', '\xff'}) {
        const std::string text =
            "\"" + std::string(before, 'a') + wrong + std::string(behind, 'b') + '"';
        const std::string column = ":" + std::to_string(before + 2) + ": ";
        EXPECT_THAT(error_of(text), ::testing::HasSubstr(column)) << before << " " << behind;
      }
    }
  }
}

TEST(ParseJson, SkipsAByteOrderMark) {
  EXPECT_EQ(parse_json("\xef\xbb\xbf{}", "x"), Json::object());
  EXPECT_THAT(error_of("\xef\xbb\xbf?"), StartsWith("x.json:1:1: found '?'"));
}

TEST(PythonFloatRepr, MatchesPython) {
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {0.1, "0.1"},
      {100.0, "100.0"},
      {1e-05, "1e-05"},
      {0.0001, "0.0001"},
      {2e-4, "0.0002"},
      {1.5e-5, "1.5e-05"},
      {1e15, "1000000000000000.0"},
      {9999999999999998.0, "9999999999999998.0"},
      {1e16, "1e+16"},
      {1.2345e22, "1.2345e+22"},
      {1e100, "1e+100"},
      {1.0 / 3.0, "0.3333333333333333"},
      {2.845562696456909, "2.845562696456909"},
      {5e-324, "5e-324"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {123456.789, "123456.789"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float_repr(value), text);
  EXPECT_EQ(python_float_repr(std::nan("")), "nan");
  EXPECT_EQ(python_float_repr(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(DumpPython, MatchesJsonDumps) {
  const Json json = parse_json(
      R"({"b": [], "a": {"y": {}, "x": [1, 2.0, 1e-5, null, true]}, "c": "é\"\\/\t\u007f😀"})", "x");
  EXPECT_EQ(dump_python(json),
            "{\n  \"a\": {\n    \"x\": [\n      1,\n      2.0,\n      1e-05,\n      null,\n      "
            "true\n    ],\n    \"y\": {}\n  },\n  \"b\": [],\n  \"c\": "
            "\"\\u00e9\\\"\\\\/\\t\\u007f\\ud83d\\ude00\"\n}");
  EXPECT_EQ(dump_python(json, -1, false, false),
            "{\"b\": [], \"a\": {\"y\": {}, \"x\": [1, 2.0, 1e-05, null, true]}, \"c\": "
            "\"é\\\"\\\\/\\t\x7f😀\"}");
  EXPECT_EQ(dump_python(parse_json("[NaN,Infinity,-Infinity]", "x"), -1),
            "[NaN, Infinity, -Infinity]");
  EXPECT_EQ(dump_python(Json::array({1}), 0), "[\n1\n]");
}

TEST(ReadJsonFile, NamesThePath) {
  const testing::TemporaryFolder folder;
  const auto path = folder.put("config.json", "{\n  \"a\": \n}");
  EXPECT_THAT(message_of<FormatError>([&] { read_json_file(path); }),
              StartsWith(path.string() + ":3:1: found '}', expected a value"));
  EXPECT_THROW(read_json_file(folder / "none.json"), IoError);
}

}  // namespace
}  // namespace strata
