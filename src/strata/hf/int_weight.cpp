#include "strata/hf/int_weight.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/element.h"

namespace strata::hf {
namespace {

constexpr std::string_view kWeight = ".weight";

struct Ends {
  std::string_view codes, scales, zeros, order, shape;
};

constexpr Ends kEnds = {".qweight", ".scales", ".qzeros", ".g_idx", ""};
constexpr Ends kPackedEnds = {".weight_packed", ".weight_scale", ".weight_zero_point",
                              ".weight_g_idx", ".weight_shape"};

const Ends& ends_of(IntLayout layout) {
  return layout == IntLayout::kCompressed ? kPackedEnds : kEnds;
}

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool is_scale_type(DType type) {
  return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
}

[[noreturn]] void fail_part(const ModelFolder& folder, const TensorInfo& found,
                            const std::string& expected) {
  throw FormatError(
      "{}: tensor \"{}\" is {} [{}], expected {}; use the config.json that belongs to these "
      "weights, or a checkpoint of 16 bits",
      folder.file_of(found).path().filename().string(), found.name, name_of(found.dtype),
      fmt::join(found.shape, ", "), expected);
}

// The tensors of one weight while what they are is found out.
class Parts {
 public:
  Parts(const ModelFolder& folder, IntLayout layout, std::string module)
      : folder_(folder), ends_(ends_of(layout)), module_(std::move(module)) {}

  const TensorInfo* find(std::string_view end) const {
    return folder_.find(module_ + std::string(end));
  }

  const TensorInfo* require(std::string_view end) const {
    if (const TensorInfo* found = find(end)) return found;
    throw FormatError(
        "{}: found \"{}{}\" without \"{}{}\", expected both; download the checkpoint again",
        folder_.path().string(), module_, ends_.codes, module_, end);
  }

  void require_shape(const TensorInfo& part, DType type, const std::vector<int64_t>& shape) const {
    if (part.dtype == type && part.shape == shape) return;
    fail_part(folder_, part,
              fmt::format("{} [{}] beside \"{}{}\"", name_of(type), fmt::join(shape, ", "), module_,
                          ends_.codes));
  }

  const ModelFolder& folder() const { return folder_; }
  const Ends& ends() const { return ends_; }

 private:
  const ModelFolder& folder_;
  const Ends& ends_;
  std::string module_;
};

// What compressed-tensors wrote of the matrix.
std::vector<int64_t> sizes_in(const Parts& parts, const TensorInfo& shape) {
  const bool is_long = shape.dtype == DType::kI64;
  if ((!is_long && shape.dtype != DType::kI32) || shape.numel() != 2) {
    fail_part(parts.folder(), shape, "two whole numbers (I64 or I32)");
  }
  const std::byte* bytes = parts.folder().bytes(shape).data();
  std::vector<int64_t> sizes(2);
  for (size_t i = 0; i < 2; ++i) {
    int32_t narrow = 0;
    if (is_long) std::memcpy(&sizes[i], bytes + 8 * i, 8);
    if (!is_long) std::memcpy(&narrow, bytes + 4 * i, 4);
    if (!is_long) sizes[i] = narrow;
  }
  if (std::ranges::all_of(sizes, [](int64_t n) { return n > 0 && n < (int64_t{1} << 31); })) {
    return sizes;
  }
  throw FormatError("{}: tensor \"{}\": found [{}], expected sizes; download the checkpoint again",
                    parts.folder().file_of(shape).path().filename().string(), shape.name,
                    fmt::join(sizes, ", "));
}

// The sizes of the matrix if its codes had so many bits.
std::optional<std::vector<int64_t>> sizes_by(const IntWeight& weight, const Parts& parts,
                                             const IntScheme& scheme) {
  const int64_t down = weight.codes->shape[0], across = weight.codes->shape[1];
  const int64_t per = 32 / scheme.bits;
  if (weight.layout == IntLayout::kAwq) return {{across * per, down}};
  if (weight.layout == IntLayout::kGptq) {
    const bool fits = weight.zeros->shape.size() == 2 && weight.zeros->shape[1] * per == across;
    if (!fits) return std::nullopt;
    return {{across, down * per}};
  }
  std::vector<int64_t> sizes = sizes_in(parts, *weight.shape);
  if (sizes[0] != down || divide_up(sizes[1], per) != across) return std::nullopt;
  return sizes;
}

// Whether the weight has such groups; then it is described.
bool take_scheme(const Parts& parts, const IntScheme& scheme, IntWeight& weight) {
  const auto sizes = sizes_by(weight, parts, scheme);
  if (!sizes) return false;
  weight.bits = scheme.bits;
  weight.rows = (*sizes)[0];
  weight.columns = (*sizes)[1];
  weight.group = scheme.group == 0 ? weight.columns : std::min(scheme.group, weight.columns);
  weight.groups = divide_up(weight.columns, weight.group);
  const bool is_packed = weight.layout == IntLayout::kCompressed;
  return weight.scales->shape == (is_packed ? std::vector{weight.rows, weight.groups}
                                            : std::vector{weight.groups, weight.rows});
}

const IntScheme& scheme_of(const Parts& parts, const IntForm& form, IntWeight& weight) {
  for (const IntScheme& scheme : form.schemes) {
    if (take_scheme(parts, scheme, weight)) return scheme;
  }
  std::string expected = describe(form.schemes[0]);
  for (size_t i = 1; i < form.schemes.size(); ++i) expected += " or " + describe(form.schemes[i]);
  const TensorInfo& codes = *weight.codes;
  fail_part(parts.folder(), *weight.scales,
            fmt::format("the scales of \"{}\" [{}] by config.json: {}", codes.name,
                        fmt::join(codes.shape, ", "), expected));
}

void check_zeros(const Parts& parts, const IntScheme& scheme, const IntWeight& weight) {
  if (weight.zeros == nullptr) {
    if (!scheme.is_symmetric) (void)parts.require(parts.ends().zeros);
    return;
  }
  const int64_t words = divide_up(weight.rows, weight.per_word());
  if (weight.layout != IntLayout::kCompressed) {
    parts.require_shape(*weight.zeros, DType::kI32, {weight.groups, words});
  } else if (weight.zeros->dtype == DType::kI8) {
    parts.require_shape(*weight.zeros, DType::kI8, {weight.rows, weight.groups});
  } else {
    parts.require_shape(*weight.zeros, DType::kI32, {words, weight.groups});
  }
}

IntWeight describe_weight(const Parts& parts, const IntForm& form) {
  const Ends& ends = parts.ends();
  const bool is_packed = form.layout == IntLayout::kCompressed;
  IntWeight weight{.layout = form.layout,
                   .bits = 0,
                   .zeros_are_less = form.zeros_are_less,
                   .codes = parts.require(ends.codes),
                   .scales = parts.require(ends.scales),
                   .zeros = is_packed ? parts.find(ends.zeros) : parts.require(ends.zeros),
                   .order = form.layout == IntLayout::kAwq ? nullptr : parts.find(ends.order),
                   .shape = is_packed ? parts.require(ends.shape) : nullptr,
                   .rows = 0,
                   .columns = 0,
                   .group = 0,
                   .groups = 0};
  const TensorInfo& codes = *weight.codes;
  if (codes.dtype != DType::kI32 || codes.shape.size() != 2 || codes.numel() == 0) {
    fail_part(parts.folder(), codes, "I32 with the words of a matrix");
  }
  if (!is_scale_type(weight.scales->dtype)) {
    fail_part(parts.folder(), *weight.scales, "F32, BF16 or F16");
  }
  const IntScheme& scheme = scheme_of(parts, form, weight);
  check_zeros(parts, scheme, weight);
  if (weight.order != nullptr) {
    parts.require_shape(*weight.order, DType::kI32, {weight.columns});
  }
  return weight;
}

// "...q_proj.weight" of "...q_proj.qweight"; nothing for other tensors.
std::optional<std::string> weight_of_codes(IntLayout layout, const std::string& name) {
  const std::string_view end = ends_of(layout).codes;
  if (!name.ends_with(end)) return std::nullopt;
  return name.substr(0, name.size() - end.size()) + std::string(kWeight);
}

}  // namespace

std::vector<const TensorInfo*> IntWeight::parts() const {
  std::vector<const TensorInfo*> found;
  for (const TensorInfo* part : {codes, scales, zeros, order, shape}) {
    if (part != nullptr) found.push_back(part);
  }
  return found;
}

std::optional<IntWeight> find_int_weight(const ModelFolder& folder, const std::string& name) {
  if (folder.is_adapter() || !name.ends_with(kWeight) || folder.find(name) != nullptr) return {};
  if (!announces_ints(folder.config())) return {};
  const std::string module = name.substr(0, name.size() - kWeight.size());
  const IntForm form = read_int_form(folder.config());
  const Parts parts(folder, form.layout, module);
  if (parts.find(parts.ends().codes) == nullptr) return {};
  return describe_weight(parts, form);
}

std::optional<IntWeight> find_readable_ints(const ModelFolder& folder, const std::string& name) {
  try {
    return find_int_weight(folder, name);
  } catch (const Error&) {  // told whoever reads it
    return std::nullopt;
  }
}

std::set<std::string> int_weights(const ModelFolder& folder) {
  std::set<std::string> weights;
  if (folder.is_adapter() || !announces_ints(folder.config())) return weights;
  for (const std::string& name : folder.names()) {
    for (const IntLayout layout : {IntLayout::kGptq, IntLayout::kCompressed}) {
      const auto weight = weight_of_codes(layout, name);
      if (weight && find_readable_ints(folder, *weight)) weights.insert(*weight);
    }
  }
  return weights;
}

std::vector<std::string> names_of_copy(const ModelFolder& folder) {
  const std::set<std::string> weights = int_weights(folder);
  std::set<std::string> names = weights, parts;
  for (const std::string& weight : weights) {
    const auto described = find_int_weight(folder, weight);
    for (const TensorInfo* part : described.value().parts()) parts.insert(part->name);
  }
  for (std::string& name : folder.names()) {
    if (!parts.contains(name)) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

bool is_void_bias(const ModelFolder& folder, const std::string& name) {
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const TensorInfo* bias = folder.find(name);
  if (bias == nullptr || !is_scale_type(bias->dtype)) return false;
  const std::string module = name.substr(0, name.size() - kBias.size());
  if (!find_readable_ints(folder, module + std::string(kWeight))) return false;
  const std::span<const std::byte> bytes = folder.bytes(*bias);
  const size_t size = size_of(bias->dtype);
  bool is_void = true;
  for (size_t at = 0; is_void && at < bytes.size(); at += size) {
    is_void = element_at(bytes.data() + at, bias->dtype) == 0.0f;
  }
  forget_pages(bytes);
  return is_void;
}

}  // namespace strata::hf
