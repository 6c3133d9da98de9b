// manifest.json of a checkpoint, as it comes and with a checksum made to fit, so that the fields
// behind it are reached.
#include "strata/checkpoint/manifest.h"
#include "target.h"

namespace {

void parse(std::string_view text) {
  strata::fuzz::expect_answer([&] {
    const auto manifest = strata::checkpoint::parse_manifest(text, "manifest.json");
    // What was accepted must survive being written.
    const std::string again = strata::checkpoint::manifest_text(manifest);
    const auto second = strata::checkpoint::parse_manifest(again, "again");
    if (second.tensors.size() != manifest.tensors.size()) __builtin_trap();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(strata::fuzz::text_of(data, size));
  parse(text);
  constexpr std::string_view kKey = "\"checksum\": \"";
  const size_t at = text.rfind(kKey);
  if (at == std::string::npos || at + kKey.size() + 16 > text.size()) return 0;
  text.replace(at + kKey.size(), 16, strata::checkpoint::checksum(text.data(), at));
  parse(text);
  return 0;
}
