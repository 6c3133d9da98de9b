// `.metadata` of torch.distributed.checkpoint, and what its places lead to in a data file.
#include <stdlib.h>

#include <fstream>

#include "strata/hf/formats/dcp.h"
#include "target.h"

namespace {

// One folder for all inputs; its data file is that of the corpus, or any bytes.
std::filesystem::path folder() {
  static const std::filesystem::path path = [] {
    std::string name = "/tmp/strata-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw strata::InternalError("fuzz: no folder");
    std::ofstream(name + "/__0_0.distcp") << std::string(4096, 'P');
    return name;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(folder() / ".metadata", std::ios::binary) << strata::fuzz::text_of(data, size);
  strata::fuzz::expect_answer([&] {
    strata::hf::DcpFolder input(folder());
    std::vector<std::byte> out;
    for (const auto& tensor : input.tensors()) {
      if (tensor.size_bytes() > (1 << 22)) continue;
      out.resize(tensor.size_bytes());
      strata::fuzz::expect_answer([&] { input.read(tensor, out); });
    }
    for (const auto& item : input.items()) {
      strata::fuzz::expect_answer([&] { input.number(item); });
    }
  });
  return 0;
}
