#include "strata/hf/mxfp4.h"

#include <string_view>

#include <fmt/ranges.h>

#include "strata/base/error.h"

namespace strata::hf {
namespace {

constexpr int64_t kCodes = 32, kBytes = 16;  // of a block

[[noreturn]] void fail(const ModelFolder& folder, const TensorInfo& info,
                       const std::string& expected) {
  throw FormatError(
      "{}: tensor \"{}\" is {} [{}], expected {} of weights in MXFP4; download the checkpoint "
      "again",
      folder.file_of(info).path().filename().string(), info.name, name_of(info.dtype),
      fmt::join(info.shape, ", "), expected);
}

}  // namespace

bool announces_mxfp4(const Json& model_config) {
  const auto entry = model_config.find("quantization_config");
  if (entry == model_config.end() || !entry->is_object()) return false;
  const auto method = entry->find("quant_method");
  return method != entry->end() && method->is_string() && method->get<std::string>() == "mxfp4";
}

std::optional<Mxfp4Weight> find_mxfp4_weight(const ModelFolder& folder, const std::string& name) {
  const TensorInfo* blocks = folder.find(name + "_blocks");
  if (blocks == nullptr) return {};
  const std::vector<int64_t>& shape = blocks->shape;
  if (blocks->dtype != DType::kU8 || shape.size() != 4 || shape[3] != kBytes) {
    fail(folder, *blocks, "U8 [experts, rows, columns / 32, 16]");
  }
  const TensorInfo* scales = folder.find(name + "_scales");
  if (scales == nullptr) {
    throw FormatError(
        "{}: found \"{}\" without \"{}_scales\", expected both; download the checkpoint again",
        folder.path().string(), blocks->name, name);
  }
  const std::vector<int64_t> of_scales(shape.begin(), shape.end() - 1);
  if (scales->dtype != DType::kU8 || scales->shape != of_scales) {
    fail(folder, *scales, fmt::format("U8 [{}]", fmt::join(of_scales, ", ")));
  }
  return Mxfp4Weight{blocks, scales, {shape[0], kCodes * shape[2], shape[1]}};
}

std::vector<std::string> mxfp4_parts(const ModelFolder& folder) {
  std::vector<std::string> parts;
  if (folder.is_adapter() || !announces_mxfp4(folder.config())) return parts;
  constexpr std::string_view kEnd = "_blocks";
  constexpr std::string_view kScales = "_scales";
  for (const std::string& name : folder.names()) {
    if (name.ends_with(kScales)) {
      const std::string weight = name.substr(0, name.size() - kScales.size());
      if (folder.find(weight + "_blocks") != nullptr) continue;
      throw FormatError(
          "{}: found \"{}\" without \"{}_blocks\", expected both; download the checkpoint again",
          folder.path().string(), name, weight);
    }
    if (!name.ends_with(kEnd)) continue;
    const auto weight = find_mxfp4_weight(folder, name.substr(0, name.size() - kEnd.size()));
    parts.insert(parts.end(), {weight->blocks->name, weight->scales->name});
  }
  return parts;
}

}  // namespace strata::hf
