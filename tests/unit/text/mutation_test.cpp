// Oracle: whatever a file holds, loading it ends in success or in one of this program's errors, and
// what was loaded encodes and decodes without another kind of failure. Mutations are a function of
// the round's number.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::text {
namespace {

namespace fs = std::filesystem;

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  // Replaces, removes, copies or changes a few nodes anywhere in the document.
  Json change(Json document) {
    for (uint32_t i = 0; i <= random_() % 3; ++i) {
      std::vector<Json*> nodes;
      collect(document, nodes);
      Json& node = *nodes[random_() % nodes.size()];
      switch (random_() % 5) {
        case 0:
          node = odd_value();
          break;
        case 1: {
          const Json copy = *nodes[random_() % nodes.size()];
          node = copy;
          break;
        }
        case 2:
          if (node.is_object() && !node.empty()) node.erase(pick_key(node));
          break;
        case 3:
          if (node.is_object() && !node.empty()) node[pick_key(node)] = odd_value();
          break;
        default:
          if (node.is_string()) node = change(node.get<std::string>());
          if (node.is_number()) node = static_cast<int64_t>(random_()) - (int64_t{1} << 31);
      }
    }
    return document;
  }

  // Flips, removes, repeats or inserts bytes.
  std::string change(std::string text) {
    for (uint32_t i = 0; i <= random_() % 4; ++i) {
      const size_t at = text.empty() ? 0 : random_() % text.size();
      const size_t length = text.empty() ? 0 : random_() % std::min<size_t>(text.size() - at, 20);
      switch (random_() % 4) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, text.substr(random_() % (text.size() + 1), length));
          break;
        case 2:
          text.insert(at, 1, static_cast<char>(random_()));
          break;
        default:
          if (!text.empty()) text[at] = static_cast<char>(random_());
      }
    }
    return text;
  }

 private:
  static void collect(Json& node, std::vector<Json*>& nodes) {
    nodes.push_back(&node);
    if (node.is_structured()) {
      for (Json& child : node) collect(child, nodes);
    }
  }
  std::string pick_key(const Json& object) {
    auto it = object.begin();
    std::advance(it, random_() % object.size());
    return it.key();
  }
  Json odd_value() {
    const Json values[] = {nullptr,
                           true,
                           -1,
                           0,
                           3,
                           2147483648,
                           -1e300,
                           "",
                           "a",
                           "▁",
                           "\xc3\xa9",
                           Json::array(),
                           Json::object(),
                           {"a", "b"},
                           {{"type", "BPE"}},
                           "(((",
                           "[",
                           {{"String", "a"}},
                           {{"Regex", "(a+)+$"}},
                           1e18};
    return values[random_() % std::size(values)];
  }

  std::mt19937 random_;
};

const Json kAdded = Json::parse(R"([
  {"id": 3, "content": "<s>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false},
  {"id": 4, "content": "</s>", "special": true, "normalized": true, "lstrip": true, "rstrip": true, "single_word": true}])");
const Json kEnds = Json::parse(R"({"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
  "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}})");

std::vector<Json> documents() {
  std::vector<Json> all;
  const auto add = [&all](const char* model, const char* normalizer, const char* pre,
                          const char* decoder) {
    all.push_back({{"version", "1.0"},
                   {"truncation", nullptr},
                   {"padding", nullptr},
                   {"added_tokens", kAdded},
                   {"normalizer", Json::parse(normalizer)},
                   {"pre_tokenizer", Json::parse(pre)},
                   {"post_processor", kEnds},
                   {"decoder", Json::parse(decoder)},
                   {"model", Json::parse(model)}});
  };
  add(R"({"type": "BPE", "dropout": null, "unk_token": "a", "continuing_subword_prefix": "", "end_of_word_suffix": "",
          "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]})",
      R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"}]})",
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated", "invert": false},
          {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]})",
      R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
          {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  add(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0], ["a", -1.5], ["▁b", -2.0]]})",
      R"({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true})",
      R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
      R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})");
  add(R"({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
          "vocab": {"[UNK]": 0, "a": 1, "##b": 2}})",
      R"({"type": "Strip", "strip_left": true, "strip_right": true})",
      R"({"type": "BertPreTokenizer"})",
      R"({"type": "WordPiece", "prefix": "##", "cleanup": true})");
  add(R"({"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1, "c": 2}})",
      R"({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAA"})",
      R"({"type": "Whitespace"})", "null");
  return all;
}

TEST(Mutations, OfTokenizerJsonEndInAnErrorOrWork) {
  const fs::path folder = fs::path(testing::TempDir()) / "strata_mutations";
  fs::create_directories(folder);
  const std::vector<Json> originals = documents();
  int loaded = 0;
  for (uint32_t round = 0; round < 6000; ++round) {
    Mutator mutator(round);
    const Json& original = originals[round % originals.size()];
    std::string text = round % 8 == 7 ? mutator.change(original.dump())
                                      : mutator.change(original).dump(
                                            -1, ' ', false, Json::error_handler_t::replace);
    std::ofstream(folder / "tokenizer.json") << text;
    SCOPED_TRACE(round);
    try {
      const auto tokenizer = Tokenizer::load(folder);
      ++loaded;
      for (const char* input :
           {"", "ab a b", "<s>x</s> \xc3\xa9\xff\n", "aaaaaaaaaaaaaaaaaaaaaaaa!"}) {
        std::vector<int32_t> ids = tokenizer->encode(input);
        for (const Token& token : tokenizer->encode_with_ranges(input)) {
          ASSERT_LE(token.begin, token.end);
          ASSERT_LE(token.end, std::string_view(input).size());
        }
        ids.insert(ids.end(), {-1, 0, 1, 1 << 30});
        tokenizer->decode(ids);
      }
    } catch (const Error&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << "round " << round << ": " << error.what() << "\n" << text.substr(0, 3000);
      break;
    }
  }
  EXPECT_GT(loaded, 100);
  fs::remove_all(folder);
}

TEST(Mutations, OfTemplatesEndInAnErrorOrWork) {
  const std::string original =
      "{%- macro f(a, b=2) -%}{{ a | tojson(indent=b) }}{%- endmacro -%}{% set ns = namespace(x=1) "
      "%}"
      "{% for m in messages if m.role != 'x' %}{% if loop.first and m['content'] is string %}"
      "{{ '<|' ~ m.role + '|>' }}{% generation %}{{ m.content[1:-1:2].strip().split('a') | "
      "map('upper') "
      "| join(', ') }}{% endgeneration %}{% elif m.tool_calls is defined %}{{ f({'a': [1, 2.5, "
      "none]}) }}"
      "{% else %}{% set ns.x = ns.x * 3 + loop.index0 // 2 %}{% break %}{% endif %}{% endfor %}"
      "{# note #}{{ raise_exception('no') if ns.x > 99999 else strftime_now('%Y')[:0] }}";
  const Json messages = Json::parse(
      R"([{"role": "user", "content": "banana é"}, {"role": "assistant", "content": "a", "tool_calls": [{"x": 1}]}])");
  int rendered = 0;
  for (uint32_t round = 0; round < 20000; ++round) {
    Mutator mutator(round);
    const std::string source = mutator.change(original);
    try {
      const ChatTemplate chat_template(source);
      chat_template.render(messages, Tokenizer::Specials(), /*add_generation_prompt=*/true);
      ++rendered;
    } catch (const Error&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << "round " << round << ": " << error.what() << "\n" << source;
      break;
    }
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace strata::text
