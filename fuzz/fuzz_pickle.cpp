// Pickles: any global allowed, so that all opcodes are reached; then only torch's.
#include "strata/hf/formats/pickle.h"
#include "strata/hf/formats/torch_file.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = strata::fuzz::bytes_of(data, size);
  strata::fuzz::expect_answer(
      [&] { strata::hf::parse_pickle(bytes, "any", [](std::string_view) { return true; }); });
  strata::fuzz::expect_answer(
      [&] { strata::hf::parse_pickle(bytes, "torch", strata::hf::is_torch_global); });
  return 0;
}
