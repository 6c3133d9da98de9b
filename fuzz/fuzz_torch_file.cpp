// Files of torch.save: the zip, the tree in it, and every tensor's elements.
#include "strata/hf/formats/torch_file.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::fuzz::expect_answer([&] {
    const strata::hf::TorchFile file(strata::fuzz::bytes_of(data, size), "input");
    std::vector<std::byte> out;
    uint64_t total = 0;
    for (const auto& tensor : file.tensors()) {
      // Views share storages: a file may hold many of the same bytes.
      if ((total += tensor.size_bytes()) > (1 << 22)) break;
      out.resize(tensor.size_bytes());
      file.read(tensor, out);
    }
    file.verify();
  });
  return 0;
}
