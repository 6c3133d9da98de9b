// Chat templates: any text renders or is refused, within the engine's limits of steps and size.
#include "strata/text/templates/chat_template.h"
#include "strata/text/templates/template_marks.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::Json messages = strata::Json::parse(
      R"([{"role": "user", "content": "banana \u00e9"},
          {"role": "assistant", "content": "a", "tool_calls": [{"x": [1, 2.5, null]}]}])");
  const std::string source(strata::fuzz::text_of(data, size));
  (void)strata::text::dates_of(source, 0);
  strata::fuzz::expect_answer([&] {
    const strata::text::ChatTemplate chat_template(source);
    const auto rendered = chat_template.render(messages, {}, /*add_generation_prompt=*/true);
    for (const auto& [begin, end] : rendered.generation) {
      if (begin > end || end > rendered.text.size()) __builtin_trap();
    }
  });
  return 0;
}
