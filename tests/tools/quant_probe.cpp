// Quantises and dequantises tensors of a safetensors file. Oracle tool of tests/parity.
// Usage: quant_probe INPUT.safetensors OUTPUT.safetensors. A tensor "TAG|KIND|BLOCK|NESTED" is
// quantised in that format and written as TAG.codes, .scales, .nested, .mean, .float32, .bfloat16,
// .float16, and the dynamic maps as "map.signed" and "map.unsigned". KIND dynamic: 8 bits by the
// map, NESTED 1: the signed one, as .codes, .scales, .float32.
// A tensor "x.TAG" is multiplied by the 8-bit weight TAG as LLM.int8() does without outliers:
// TAG.product.
#include <cstdio>
#include <exception>
#include <map>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "leave.h"
#include "strata/base/error.h"
#include "strata/hf/formats/safetensors.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/int8_product.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/quantized.h"
#include "strata/shard/loading.h"

namespace strata {
namespace {

hf::DType file_type(at::ScalarType type) {
  if (type == at::kByte) return hf::DType::kU8;
  if (type == at::kHalf) return hf::DType::kF16;
  return type == at::kBFloat16 ? hf::DType::kBF16 : hf::DType::kF32;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == '|') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor read(const hf::SafetensorsFile& file, const hf::TensorInfo& info) {
  at::Tensor x = at::empty(info.shape, at::dtype(shard::scalar_type_of(info.dtype, info.name)));
  const auto bytes = file.bytes(info);
  std::memcpy(x.data_ptr(), bytes.data(), bytes.size());
  return x;
}

void quantize_by_map(const at::Tensor& x, bool is_signed, int64_t block, const std::string& tag,
                     Tensors& out) {
  namespace cpu = ops::quant::cpu;
  const int64_t n = x.numel();
  at::Tensor codes = at::empty({n}, at::kByte), scales = at::empty({(n + block - 1) / block});
  at::Tensor decoded = at::empty({n});
  cpu::quantize_dynamic(is_signed, cpu::Rounding::kTable, block, x.const_data_ptr<float>(), n,
                        codes.data_ptr<uint8_t>(), scales.data_ptr<float>());
  cpu::dequantize_dynamic(is_signed, block, codes.const_data_ptr<uint8_t>(),
                          scales.const_data_ptr<float>(), n, decoded.data_ptr<float>());
  out[tag + ".codes"] = codes;
  out[tag + ".scales"] = scales;
  out[tag + ".float32"] = decoded;
}

void quantize_one(const hf::SafetensorsFile& file, const hf::TensorInfo& info, Tensors& out) {
  const auto parts = split(info.name);
  if (parts.at(1) == "dynamic") {
    return quantize_by_map(read(file, info), parts.at(3) == "1", std::stoll(parts.at(2)), parts[0],
                           out);
  }
  const ops::quant::Format format{.kind = ops::quant::parse_kind(parts.at(1), "kind"),
                                  .block = std::stoll(parts.at(2)),
                                  .nested = parts.at(3) == "1"};
  const auto matrix = ops::quant::quantize(read(file, info), format);
  const std::string& tag = parts[0];
  out[tag + ".codes"] = matrix.codes();
  out[tag + ".scales"] = matrix.scales();
  if (format.nested) out[tag + ".nested"] = matrix.nested();
  if (format.nested) out[tag + ".mean"] = matrix.mean();
  out[tag + ".float32"] = ops::quant::dequantize(matrix, at::kFloat);
  out[tag + ".bfloat16"] = ops::quant::dequantize(matrix, at::kBFloat16);
  out[tag + ".float16"] = ops::quant::dequantize(matrix, at::kHalf);
  if (const hf::TensorInfo* x = file.find("x." + tag)) {
    out[tag + ".product"] = ops::quant::int8_product(read(file, *x), matrix, /*threshold=*/0);
  }
}

void run_probe(const std::string& input, const std::string& output) {
  const hf::SafetensorsFile file(input);
  Tensors out;
  for (const hf::TensorInfo& info : file.tensors()) {
    if (!info.name.starts_with("x.")) quantize_one(file, info, out);
  }
  for (const bool is_signed : {true, false}) {
    const auto& map = ops::quant::dynamic_map(is_signed);
    at::Tensor values = at::empty({256});
    std::copy(map.begin(), map.end(), values.data_ptr<float>());
    out[is_signed ? "map.signed" : "map.unsigned"] = values;
  }
  std::vector<hf::TensorSpec> specs;
  for (auto& [name, tensor] : out) {
    tensor = tensor.contiguous();
    specs.push_back({name, file_type(tensor.scalar_type()), tensor.sizes().vec()});
  }
  hf::SafetensorsWriter writer(output, std::move(specs));
  for (const auto& [name, tensor] : out) {
    writer.write(name, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  writer.finish();
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: quant_probe INPUT.safetensors OUTPUT.safetensors\n");
    return 2;
  }
  try {
    strata::run_probe(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    strata::leave(1);
  }
  strata::leave(0);
}
