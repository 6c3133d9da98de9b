#include "strata/hf/fp8.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/float8.h"
#include "strata/hf/element.h"

namespace strata::hf {
namespace {

// Ends of names of what all methods round besides weights.
constexpr std::array<std::string_view, 8> kActivationEnds = {
    "activation_scale", ".input_scale", ".input_scale_ub", ".output_scale",
    ".q_scale",         ".k_scale",     ".v_scale",        ".kv_scale"};

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

const TensorInfo& scales_of(const ModelFolder& folder, const TensorInfo& codes,
                            const Fp8Form& form) {
  for (const std::string_view end :
       {form.scale_end, std::string_view("_scale_inv"), std::string_view("_scale")}) {
    if (const TensorInfo* found = folder.find(codes.name + std::string(end))) return *found;
  }
  throw FormatError(
      "{}: found \"{}\" in {} without \"{}{}\", expected both; download the checkpoint again",
      folder.path().string(), codes.name, name_of(codes.dtype), codes.name, form.scale_end);
}

[[noreturn]] void fail_scales(const ModelFolder& folder, const Fp8Weight& weight,
                              const std::string& expected) {
  const TensorInfo& scales = *weight.scales;
  throw FormatError(
      "{}: tensor \"{}\" is {} [{}], expected {} beside [{}] of weights; use the config.json that "
      "belongs to these weights, or a checkpoint of 16 bits",
      folder.file_of(scales).path().filename().string(), scales.name, name_of(scales.dtype),
      fmt::join(scales.shape, ", "), expected, fmt::join(weight.codes->shape, ", "));
}

std::string describe(const std::array<int64_t, 2>& tile) {
  if (tile[0] == 0) return "one scale";
  return tile[1] == 0 ? "one scale of each row"
                      : fmt::format("one scale of each {} x {}", tile[0], tile[1]);
}

[[noreturn]] void fail_tiles(const ModelFolder& folder, const Fp8Weight& weight,
                             const Fp8Form& form) {
  std::string expected = describe(form.tiles[0]);
  for (size_t i = 1; i < form.tiles.size(); ++i) expected += " or " + describe(form.tiles[i]);
  fail_scales(folder, weight, expected);
}

std::array<int64_t, 2> in_numbers(const std::array<int64_t, 2>& tile, int64_t rows,
                                  int64_t columns) {
  return {tile[0] == 0 ? rows : tile[0], tile[1] == 0 ? columns : tile[1]};
}

// The announced tile of which there are so many; else, where that is the rule, equal parts.
std::optional<std::array<int64_t, 2>> find_tile(const Fp8Form& form, const Fp8Weight& weight) {
  for (const auto& announced : form.tiles) {
    const auto tile = in_numbers(announced, weight.rows, weight.columns);
    if (divide_up(weight.rows, tile[0]) == weight.tiles_down &&
        divide_up(weight.columns, tile[1]) == weight.tiles_across) {
      return tile;
    }
  }
  const bool divides = form.divides && weight.tiles_down > 0 && weight.tiles_across > 0 &&
                       weight.rows % weight.tiles_down == 0 &&
                       weight.columns % weight.tiles_across == 0;
  if (!divides) return std::nullopt;
  return {{weight.rows / weight.tiles_down, weight.columns / weight.tiles_across}};
}

void set_tiles(const ModelFolder& folder, const Fp8Form& form, Fp8Weight& weight) {
  const std::vector<int64_t>& codes = weight.codes->shape;
  const std::vector<int64_t>& scales = weight.scales->shape;
  weight.tiles_down = weight.tiles_across = 1;
  if (weight.scales->numel() == 1) {
    weight.tile_rows = weight.rows;
    weight.tile_columns = weight.columns;
    return;
  }
  if (scales.size() != codes.size() ||
      !std::equal(scales.begin(), scales.end() - 2, codes.begin())) {
    fail_tiles(folder, weight, form);
  }
  weight.tiles_down = scales[scales.size() - 2];
  weight.tiles_across = scales.back();
  const auto tile = find_tile(form, weight);
  if (!tile) fail_tiles(folder, weight, form);
  weight.tile_rows = (*tile)[0];
  weight.tile_columns = (*tile)[1];
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
  return element_at(bytes.data() + static_cast<size_t>(index) * size_of(dtype), dtype);
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

std::optional<Fp8Weight> find_fp8_weight(const ModelFolder& folder, const std::string& name) {
  const TensorInfo* codes = folder.find(name);
  const bool is_fp8 =
      codes != nullptr && size_of(codes->dtype) == 1 && name_of(codes->dtype).starts_with("F8");
  if (!is_fp8) return {};
  require_announced(folder, *codes);
  const Fp8Form form = read_fp8_form(folder.config());
  if (codes->shape.size() < 2 || codes->numel() == 0) {
    throw FormatError(
        "{}: tensor \"{}\" is {} [{}], expected a matrix in that type; download the checkpoint "
        "again",
        folder.file_of(*codes).path().filename().string(), name, name_of(codes->dtype),
        fmt::join(codes->shape, ", "));
  }
  Fp8Weight weight{.codes = codes,
                   .scales = &scales_of(folder, *codes, form),
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
  set_tiles(folder, form, weight);
  return weight;
}

std::optional<Fp8Weight> find_readable_fp8(const ModelFolder& folder, const std::string& name) {
  try {
    return find_fp8_weight(folder, name);
  } catch (const Error&) {  // told whoever reads it
    return std::nullopt;
  }
}

std::array<int64_t, 2> announced_fp8_tile(const Json& model_config, int64_t rows, int64_t columns) {
  return in_numbers(read_fp8_form(model_config).tiles[0], rows, columns);
}

bool is_fp8_activation_scale(std::string_view name) {
  return std::ranges::any_of(kActivationEnds,
                             [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string> fp8_scales(const ModelFolder& folder) {
  std::vector<std::string> names;
  if (folder.is_adapter() || !announces_fp8(folder.config())) return names;
  for (const std::string& name : folder.names()) {
    if (const auto weight = find_readable_fp8(folder, name)) names.push_back(weight->scales->name);
  }
  return names;
}

std::vector<float> fp8_scales_of(const ModelFolder& folder, const Fp8Weight& weight) {
  const std::span<const std::byte> bytes = folder.bytes(*weight.scales);
  std::vector<float> scales(static_cast<size_t>(weight.scales->numel()));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = element(bytes, weight.scales->dtype, static_cast<int64_t>(i));
  }
  forget_pages(bytes);
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
