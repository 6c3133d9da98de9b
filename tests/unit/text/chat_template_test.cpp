// Oracle: outputs of transformers' template engine (specification 10), and errors by hand.
#include "strata/text/templates/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"

namespace strata::text {
namespace {

using ::testing::HasSubstr;

const Json kChat = Json::parse(R"([
  {"role": "system", "content": " S "},
  {"role": "user", "content": "hé<&\"'"},
  {"role": "assistant", "content": "ok\n", "tool_calls": null}])");

std::string render(const std::string& source, const Json& extra = {}) {
  return ChatTemplate(source).render(kChat, {}, false, extra).text;
}

std::string error_of(const std::string& source) {
  try {
    render(source);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChatTemplate, PublishedValues) {
  EXPECT_EQ(render("{{ messages|tojson }}"),
            R"([{"role": "system", "content": " S "}, {"role": "user", "content": "hé<&\"'"}, )"
            R"({"role": "assistant", "content": "ok\n"}])");
  EXPECT_EQ(render("{% for m in messages %}\n  {% if loop.first %}\n    A{{ m.content|trim }}\n"
                   "  {% endif %}\n{% endfor %}\nEND\n"),
            "    AS\nEND");
  EXPECT_EQ(render("{{ 7/2 }} {{ -7//2 }} {{ 2**3 }}"), "3.5 -4 8");
  EXPECT_EQ(render("{{ {'b':1,'a':2}|tojson(sort_keys=true,separators=(',',':')) }}"),
            R"({"a":2,"b":1})");
  EXPECT_EQ(render("{{ [true, none, 1.0, 'a', {'a': 'b'}] }}{{ nope }}"),
            "[True, None, 1.0, 'a', {'a': 'b'}]");
}

TEST(ChatTemplate, NamesWhatIsNoMessage) {
  for (const auto& [text, kind] : {std::pair("[18446744073709551616]", "number"),
                                   std::pair("[\"x\"]", "string"), std::pair("[[]]", "array")}) {
    try {
      ChatTemplate("x").render(parse_json_exactly(text, "x"), {}, false, {});
      ADD_FAILURE() << text;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("found ") + kind + " as message 0"));
    }
  }
}

TEST(ChatTemplate, GenerationBlocksAreByteSpans) {
  const ChatTemplate chat_template(
      "{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}é{% endif %}{% endfor %}");
  EXPECT_TRUE(chat_template.has_generation_blocks());
  const RenderedChat chat = chat_template.render(kChat, {}, false);
  EXPECT_EQ(chat.text, "éhé<&\"'é");
  ASSERT_EQ(chat.generation.size(), 1u);
  EXPECT_EQ(chat.text.substr(chat.generation[0].first,
                             chat.generation[0].second - chat.generation[0].first),
            "hé<&\"'");
  EXPECT_FALSE(ChatTemplate("{{ messages }}").has_generation_blocks());
}

TEST(ChatTemplate, GivesSpecialTokensAndExtraVariables) {
  Tokenizer::Specials specials;
  specials.bos = "<s>";
  const auto text = ChatTemplate(
                        "{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}"
                        "{{ add_generation_prompt }}{{ x }}")
                        .render(kChat, specials, true, {{"x", 3}})
                        .text;
  EXPECT_EQ(text, "<s>FalseTrueTrue3");
}

TEST(ChatTemplate, ErrorsNameLineAndCause) {
  EXPECT_EQ(error_of("\n{{ raise_exception('only user') }}"), "chat template: line 2: only user");
  EXPECT_EQ(error_of("{{ 1|nope }}"), "chat template: line 1: no filter named 'nope'");
  EXPECT_EQ(error_of("{{ 1 is nope }}"), "chat template: line 1: no test named 'nope'");
  EXPECT_EQ(error_of("\n\n{{ nope() }}"), "chat template: line 3: 'nope' is undefined");
  EXPECT_THAT(error_of("{{ messages.append(1) }}"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe."));
  EXPECT_THAT(error_of("{{ nope.x }}"), HasSubstr("'nope' is undefined"));
  EXPECT_THROW(ChatTemplate("{{ 1"), FormatError);
  for (const char* source : {"a\n{% x \xff", "\n{{ \xe6\x9d", "\n\xc3", "x\n{{ '\xf0\x9f' }}"}) {
    EXPECT_EQ(error_of(source), "chat template: line 2: found bytes that are not UTF-8");
  }
  EXPECT_THROW(ChatTemplate("x").render(Json::array(), {}, false), FormatError);
  EXPECT_THROW(ChatTemplate("x").render(Json::array({1}), {}, false), FormatError);
}

TEST(ChatTemplate, EveryPrefixOfATemplateEnds) {
  const std::string source =
      "{% macro f(a, b=[1, {'x': 2}]) -%} {{ a|default('x')|join(', ') }} {%- endmacro %}"
      "{% for m in messages if m.role != 'tool' %}{{ f(m['content'][1:-1], b=2.5e1) ~ '\\u00e9' }}"
      "{% else %}{% raw %}{{ x }}{% endraw %}{% endfor %}{# note #}{% set ns = namespace(a=1) %}"
      "{% set ns.a = ns.a + 1 if ns.a is odd else -1 %}{{ 'a' not in ['b'] and not (1 >= 2) }}";
  EXPECT_EQ(error_of(source), "no error");
  for (size_t size = 0; size < source.size(); ++size) {
    error_of(source.substr(0, size));  // any outcome but a crash
    error_of(source.substr(size));
  }
}

TEST(ChatTemplate, HostileTemplatesEndInErrors) {
  EXPECT_THAT(
      error_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
      HasSubstr("too many steps"));
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("recursion"));
  EXPECT_THAT(error_of("{{ 'a' * 1000000000 }}"), HasSubstr("64 MiB"));
  EXPECT_THAT(error_of("{{ " + std::string(100000, '-') + " }}"), HasSubstr("nested"));
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"),
              HasSubstr("nested"));
}

// Regression: the scope around a loop went while a namespace still held the loop.
TEST(ChatTemplate, ARecursiveLoopThatIsOverCanBeCalled) {
  EXPECT_EQ(render("{% set ns = namespace(f=0) %}{% for a in [1, 2] %}{% for b in [1] recursive %}"
                   "<{{ b }}{{ loop.depth }}{{ big }}>{% set ns.f = loop %}{% endfor %}{% endfor %}"
                   "{{ ns.f([1, 2]) }}"),
            "<11><11><12><22>");
  EXPECT_EQ(render("{% set ns = namespace(f=0) %}{% macro m(x) %}{% for b in [1] recursive %}"
                   "<{{ x }}{{ b }}>{% set ns.f = loop %}{% endfor %}{% endmacro %}"
                   "{{ m(7) }}{{ m(8) }}{{ ns.f([1, 2]) }}"),
            "<71><81><81><82>");
  const std::string kept =
      "{% set ns = namespace(f=0) %}{% for a in [1] %}{% for b in [1] %}{% set ns.f = loop %}"
      "{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(kept + "{{ ns.f([1]) }}"), HasSubstr("the loop is not marked recursive"));
  EXPECT_THAT(error_of(kept + "{{ ns.f.index }}"), HasSubstr("the loop is over"));
}

// `step` 200000 times, which makes what ns.x holds as many levels deep.
std::string deepened(const std::string& step) {
  return "{% set ns = namespace(x=[1]) %}{% for j in range(4) %}{% for i in range(50000) %}" +
         step + "{% endfor %}{% endfor %}";
}

// Regression: values were destroyed by recursion, deeper than the stack.
TEST(ChatTemplate, DeepValuesGoWithoutRecursion) {
  for (const char* value : {"[ns.x]", "(ns.x,)", "{'a': ns.x}", "namespace(x=ns.x)", "cycler(ns.x)",
                            "[ns.x.count]", "dict(a=ns.x)"}) {
    const std::string source = deepened("{% set ns.x = " + std::string(value) + " %}");
    EXPECT_EQ(render(source + "end"), "end") << value;
    EXPECT_EQ(render(source + "{% set ns.x = 1 %}end"), "end") << value;
  }
  // From the first to the last, so that none knows how deep it is.
  const std::string chain =
      "{% set ns = namespace() %}{% set ns.x = namespace() %}{% set ns.y = ns.x %}"
      "{% for i in range(100000) %}{% set n = namespace() %}{% set k = ns.y %}{% set k.x = n %}"
      "{% set ns.y = n %}{% endfor %}";
  EXPECT_EQ(render(chain + "end"), "end");
  EXPECT_EQ(render(chain + "{% set ns.x = 1 %}end"), "end");
}

TEST(ChatTemplate, DeepValuesAreNotReadByRecursion) {
  const std::string deep = deepened("{% set ns.x = [ns.x] %}");
  for (const char* use :
       {"ns.x", "ns.x|tojson", "ns.x == [ns.x]", "[ns.x, [ns.x]]|sort", "[ns.x, [ns.x]]|unique",
        "[ns.x]|max == ns.x", "ns.x in [[ns.x]]", "ns.x|string", "'%s' % ns.x", "'{}'.format(ns.x)",
        "{'a': ns.x}|xmlattr"}) {
    EXPECT_THAT(error_of(deep + "{{ " + use + " }}"), HasSubstr("too deeply")) << use;
  }
  EXPECT_THAT(error_of(deep + "{{ ns.x|map(*['map'] * 1000) }}"), HasSubstr("recursion"));
  EXPECT_EQ(render(deep + "{{ ns.x|length }}{{ ns.x is sequence }}"), "1True");
}

}  // namespace
}  // namespace strata::text
