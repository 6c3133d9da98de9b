#include "strata/cli/quantization_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/hf/formats/torch_types.h"

namespace strata::cli {
namespace {

double number_of(const FileFlags& flags, const std::string& name, double otherwise) {
  if (!flags.has(name)) return otherwise;
  const std::string text = flags.get(name);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && value >= 0 && std::isfinite(value)) return value;
  throw ConfigError("--{}: found \"{}\", expected a number of at least 0", name, text);
}

}  // namespace

models::QuantizationOptions quantization_of(const FileFlags& flags, bool in_8bit) {
  models::QuantizationOptions options;
  nn::Quantization& quantization = options.quantization;
  const std::string kind = flags.get("bnb_4bit_quant_type", "nf4");
  if (!in_8bit && kind != "nf4" && kind != "fp4") {
    throw ConfigError("--bnb_4bit_quant_type: found \"{}\", expected nf4 or fp4{}", kind,
                      kind == "int8" ? "; use --to bnb-8bit" : "");
  }
  quantization.format.kind =
      in_8bit ? ops::quant::Kind::kInt8 : ops::quant::parse_kind(kind, "--bnb_4bit_quant_type");
  const double block = number_of(flags, "bnb_4bit_blocksize", 64);
  if (!(block <= 4096) || block != std::floor(block)) {
    throw ConfigError(
        "--bnb_4bit_blocksize: found {}, expected a power of two from 32 to 4096; choose 64",
        flags.get("bnb_4bit_blocksize"));
  }
  quantization.format.block = static_cast<int64_t>(block);
  ops::quant::check_block(quantization.format.block, "--bnb_4bit_blocksize");
  quantization.format.nested = flags.is_on("bnb_4bit_use_double_quant") && !in_8bit;
  quantization.threshold = number_of(flags, "llm_int8_threshold", 6.0);
  const std::string compute = flags.get("bnb_4bit_compute_dtype", "float32");
  quantization.compute = models::compute_type_of(compute);
  if (!quantization.compute) {
    throw ConfigError(
        "--bnb_4bit_compute_dtype: found \"{}\", expected float32, bfloat16 or float16", compute);
  }
  const std::string listed = flags.get("llm_int8_skip_modules");
  std::vector<std::string> skipped;
  if (listed == "none" || listed == "[]") {
    options.skip_modules = skipped;
    return options;
  }
  std::stringstream names(listed);
  for (std::string name; std::getline(names, name, ',');) skipped.push_back(name);
  if (!skipped.empty()) options.skip_modules = std::move(skipped);
  return options;
}

hf::DType storage_of(const FileFlags& flags) {
  const std::string name = flags.get("bnb_4bit_quant_storage", "uint8");
  const std::string_view kKnown[] = {"uint8", "int8", "float16", "bfloat16", "float32", "float64"};
  if (std::ranges::find(kKnown, name) != std::end(kKnown)) return *hf::dtype_of_torch_dtype(name);
  throw ConfigError("--bnb_4bit_quant_storage: found \"{}\", expected {}", name,
                    fmt::join(kKnown, ", "));
}

}  // namespace strata::cli
