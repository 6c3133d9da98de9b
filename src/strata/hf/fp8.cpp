#include "strata/hf/fp8.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/float16.h"
#include "strata/base/float8.h"

namespace strata::hf {
namespace {

// transformers writes the first, fbgemm and compressed-tensors the second.
constexpr std::array<std::string_view, 2> kScaleEnds = {"_scale_inv", "_scale"};
constexpr std::array<std::string_view, 7> kActivationEnds = {
    ".activation_scale", ".input_scale", ".input_scale_ub", ".output_scale",
    ".q_scale",          ".k_scale",     ".v_scale"};

const Json* value_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& json, const char* key) {
  const Json* value = value_of(json, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

[[noreturn]] void refuse(const char* key, const Json& value, std::string_view expected) {
  throw ConfigError(
      "config.json: quantization_config: {}: found {}, expected {}; use a checkpoint of 16 bits",
      key, dump_python(value, -1), expected);
}

void require_text(const Json& entry, const char* key, std::string_view expected) {
  const Json* value = value_of(entry, key);
  if (value != nullptr && *value != Json(expected)) refuse(key, *value, expected);
}

bool is_compressed_fp8(const Json& entry) {
  const std::string format = text_of(entry, "format");
  return format == "float-quantized" || format == "naive-quantized";
}

// Weights that were turned or thinned out before they were rounded.
void require_untransformed(const Json& entry) {
  const Json* transforms = value_of(entry, "transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    refuse("transform_config", *transforms, "none");
  }
  const Json* sparsity = value_of(entry, "sparsity_config");
  if (sparsity == nullptr || sparsity->empty()) return;
  if (text_of(*sparsity, "format") != "dense") refuse("sparsity_config", *sparsity, "none");
}

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// [rows, columns] of a tile as quantization_config says; zero where one scale holds for a whole
// matrix, or nothing is said.
std::array<int64_t, 2> announced_tile(const Json& model_config) {
  constexpr const char* kKey = "weight_block_size";
  const Json& entry = model_config.at("quantization_config");
  const Json* size = value_of(entry, kKey);
  if (size == nullptr) {
    const bool is_default = text_of(entry, "quant_method") == "fp8" && !entry.contains(kKey);
    return is_default ? std::array<int64_t, 2>{128, 128} : std::array<int64_t, 2>{0, 0};
  }
  const auto is_size = [](const Json& n) {
    return n.is_number_integer() && n.get<int64_t>() > 0 && n.get<int64_t>() < (int64_t{1} << 31);
  };
  if (!size->is_array() || size->size() != 2 || !is_size((*size)[0]) || !is_size((*size)[1])) {
    throw ConfigError(
        "config.json: quantization_config: {}: found {}, expected two positive whole numbers, or "
        "null; correct it",
        kKey, dump_python(*size, -1));
  }
  return {(*size)[0].get<int64_t>(), (*size)[1].get<int64_t>()};
}

const TensorInfo& scales_of(const ModelFolder& folder, const TensorInfo& codes) {
  for (const std::string_view end : kScaleEnds) {
    if (const TensorInfo* found = folder.find(codes.name + std::string(end))) return *found;
  }
  throw FormatError(
      "{}: found \"{}\" in {} without \"{}{}\", expected both; download the checkpoint again",
      folder.path().string(), codes.name, name_of(codes.dtype), codes.name, kScaleEnds[0]);
}

[[noreturn]] void fail_scales(const ModelFolder& folder, const Fp8Weight& weight,
                              const std::string& expected) {
  const TensorInfo& scales = *weight.scales;
  throw FormatError(
      "{}: tensor \"{}\" is {} [{}], expected {} beside [{}] of weights; use the config.json that "
      "belongs to these weights",
      folder.file_of(scales).path().filename().string(), scales.name, name_of(scales.dtype),
      fmt::join(scales.shape, ", "), expected, fmt::join(weight.codes->shape, ", "));
}

// How many elements share a scale: as config.json says where the scales are so many, else by their
// number.
int64_t tile_of(int64_t size, int64_t announced, int64_t scales) {
  if (announced > 0 && divide_up(size, announced) == scales) return announced;
  return scales > 0 && size % scales == 0 ? size / scales : 0;
}

void set_tiles(const ModelFolder& folder, Fp8Weight& weight) {
  const std::vector<int64_t>& codes = weight.codes->shape;
  const std::vector<int64_t>& scales = weight.scales->shape;
  const std::array<int64_t, 2> announced = announced_tile(folder.config());
  const std::string expected =
      announced[0] == 0 ? "one scale, or one of each row"
                        : fmt::format("one scale of each {} x {}", announced[0], announced[1]);
  const bool is_one = weight.scales->numel() == 1;
  weight.tiles_down = weight.tiles_across = 1;
  if (!is_one) {
    if (scales.size() != codes.size() ||
        !std::equal(scales.begin(), scales.end() - 2, codes.begin())) {
      fail_scales(folder, weight, expected);
    }
    weight.tiles_down = scales[scales.size() - 2];
    weight.tiles_across = scales.back();
  }
  weight.tile_rows = is_one ? weight.rows : tile_of(weight.rows, announced[0], weight.tiles_down);
  weight.tile_columns =
      is_one ? weight.columns : tile_of(weight.columns, announced[1], weight.tiles_across);
  if (weight.tile_rows == 0 || weight.tile_columns == 0) fail_scales(folder, weight, expected);
}

void require_announced(const ModelFolder& folder, const TensorInfo& codes) {
  if (codes.dtype == DType::kF8E4M3 && announces_fp8(folder.config())) return;
  throw FormatError(
      "{}: tensor \"{}\" is {}, expected F8_E4M3 and a quantization_config in config.json that "
      "says so (quant_method fp8), or a type of 16 bits or more; use the config.json that belongs "
      "to these weights",
      folder.file_of(codes).path().filename().string(), codes.name, name_of(codes.dtype));
}

float element(std::span<const std::byte> bytes, DType dtype, int64_t index) {
  const std::byte* at = bytes.data() + static_cast<size_t>(index) * size_of(dtype);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// Where the scale of an element is.
class Scales {
 public:
  Scales(const Fp8Weight& weight, std::span<const std::byte> bytes)
      : weight_(weight), bytes_(bytes), is_one_(weight.scales->numel() == 1) {}

  // Elements of a row from a column on that are decoded alike.
  int64_t run_length(int64_t column) const {
    const int64_t width = weight_.tile_columns;
    const int64_t end = width == 1 ? weight_.columns : (column / width + 1) * width;
    return std::min(weight_.columns, end) - column;
  }

  // Such elements of a row, counted through all matrices.
  void decode_run(int64_t line, int64_t column, std::span<const uint8_t> codes, float* out) const {
    const int64_t row = line % weight_.rows, matrix = line / weight_.rows;
    const int64_t down = matrix * weight_.tiles_down + row / weight_.tile_rows;
    const int64_t first = is_one_ ? 0 : down * weight_.tiles_across + column / weight_.tile_columns;
    if (weight_.tile_columns == 1 && !is_one_) {  // each column has its own
      for (size_t i = 0; i < codes.size(); ++i) {
        out[i] = kFp8Values[codes[i]] * scale(first + static_cast<int64_t>(i));
      }
      return;
    }
    const float of_run = scale(first);
    for (size_t i = 0; i < codes.size(); ++i) out[i] = kFp8Values[codes[i]] * of_run;
  }

 private:
  float scale(int64_t index) const { return element(bytes_, weight_.scales->dtype, index); }

  const Fp8Weight& weight_;
  std::span<const std::byte> bytes_;
  bool is_one_;
};

}  // namespace

bool announces_fp8(const Json& model_config) {
  const auto found = model_config.find("quantization_config");
  if (found == model_config.end() || !found->is_object()) return false;
  const Json& entry = *found;
  const std::string method = text_of(entry, "quant_method");
  if (method == "compressed-tensors") {
    if (!is_compressed_fp8(entry)) return false;
    require_untransformed(entry);
    return true;
  }
  if (method != "fp8" && method != "fbgemm_fp8") return false;
  require_text(entry, "fmt", "e4m3");
  require_text(entry, "expert_dtype", "fp8");
  return true;
}

std::optional<Fp8Weight> find_fp8_weight(const ModelFolder& folder, const std::string& name) {
  const TensorInfo* codes = folder.find(name);
  const bool is_fp8 =
      codes != nullptr && size_of(codes->dtype) == 1 && name_of(codes->dtype).starts_with("F8");
  if (!is_fp8) return {};
  require_announced(folder, *codes);
  if (codes->shape.size() < 2 || codes->numel() == 0) {
    throw FormatError(
        "{}: tensor \"{}\" is {} [{}], expected a matrix in that type; download the checkpoint "
        "again",
        folder.file_of(*codes).path().filename().string(), name, name_of(codes->dtype),
        fmt::join(codes->shape, ", "));
  }
  Fp8Weight weight{.codes = codes,
                   .scales = &scales_of(folder, *codes),
                   .rows = codes->shape[codes->shape.size() - 2],
                   .columns = codes->shape.back(),
                   .tile_rows = 0,
                   .tile_columns = 0,
                   .tiles_down = 0,
                   .tiles_across = 0};
  const DType type = weight.scales->dtype;
  if (type != DType::kF32 && type != DType::kBF16 && type != DType::kF16) {
    fail_scales(folder, weight, "F32, BF16 or F16");
  }
  set_tiles(folder, weight);
  return weight;
}

std::array<int64_t, 2> announced_fp8_tile(const Json& model_config, int64_t rows, int64_t columns) {
  const std::array<int64_t, 2> tile = announced_tile(model_config);
  if (tile[0] > 0) return tile;
  const bool is_of_rows = text_of(model_config.at("quantization_config"), "quant_method") != "fp8";
  return {is_of_rows ? 1 : rows, columns};
}

bool is_fp8_activation_scale(std::string_view name) {
  return std::ranges::any_of(kActivationEnds,
                             [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string> fp8_scales(const ModelFolder& folder) {
  std::vector<std::string> names;
  if (folder.is_adapter() || !announces_fp8(folder.config())) return names;
  for (const std::string& name : folder.names()) {
    if (const auto weight = find_fp8_weight(folder, name)) names.push_back(weight->scales->name);
  }
  return names;
}

std::vector<float> fp8_scales_of(const ModelFolder& folder, const Fp8Weight& weight) {
  const std::span<const std::byte> bytes = folder.bytes(*weight.scales);
  std::vector<float> scales(static_cast<size_t>(weight.scales->numel()));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = element(bytes, weight.scales->dtype, static_cast<int64_t>(i));
  }
  return scales;
}

void read_fp8(const ModelFolder& folder, const Fp8Weight& weight, int64_t begin,
              std::span<float> out) {
  const std::span<const std::byte> bytes = folder.bytes(*weight.codes);
  const auto* codes = reinterpret_cast<const uint8_t*>(bytes.data());
  const Scales scales(weight, folder.bytes(*weight.scales));
  const auto numel = static_cast<int64_t>(out.size());
  for (int64_t done = 0; done < numel;) {
    const int64_t place = begin + done, column = place % weight.columns;
    const int64_t count = std::min(numel - done, scales.run_length(column));
    scales.decode_run(place / weight.columns, column, {codes + place, static_cast<size_t>(count)},
                      out.data() + done);
    done += count;
  }
}

}  // namespace strata::hf
