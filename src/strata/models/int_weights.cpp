#include "strata/models/int_weights.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "strata/hf/int_codes.h"
#include "strata/hf/quantization_entry.h"
#include "strata/models/kept_weights.h"

namespace strata::models {
namespace {

using ops::Element;

constexpr int64_t kFewestBits = 4;  // of what may stay

Element element_of(hf::DType type) {
  if (type == hf::DType::kBF16) return Element::kBFloat16;
  return type == hf::DType::kF16 ? Element::kHalf : Element::kFloat;
}

}  // namespace

ops::quant::Format format_of(const hf::ModelFolder& folder, const hf::IntWeight& weight) {
  const bool may_stay = weight.bits >= kFewestBits;
  return ops::quant::int_format(
      weight.group, {.bits = weight.bits,
                     .scale_type = element_of(weight.dtype()),
                     .has_zeros = weight.zeros != nullptr,
                     .has_order = may_stay && !hf::IntCodes(folder, weight).order().empty()});
}

IntFormats int_formats(const hf::ModelFolder& folder) {
  IntFormats formats;
  for (const std::string& name : hf::int_weights(folder)) {
    formats[name] = format_of(folder, hf::find_int_weight(folder, name).value());
  }
  return formats;
}

IntFormats announced_int_formats(Model& model, const Json& model_config) {
  IntFormats formats;
  if (!hf::announces_ints(model_config)) return formats;
  const hf::IntForm form = hf::read_int_form(model_config);
  const hf::IntScheme& scheme = form.schemes[0];
  const bool is_packed = form.layout == hf::IntLayout::kCompressed;
  for (const nn::Linear* layer : announced_linears(model, *hf::quantization_entry(model_config))) {
    const int64_t columns = layer->weight().shape()[1];
    const int64_t group = scheme.group == 0 ? columns : std::min(scheme.group, columns);
    formats[layer->weight().name()] =
        ops::quant::int_format(group, {.bits = scheme.bits,
                                       .scale_type = Element::kHalf,
                                       .has_zeros = !is_packed || !scheme.is_symmetric,
                                       .has_order = scheme.has_order && group < columns});
  }
  return formats;
}

std::string assumed_int_scheme(const Json& model_config) {
  if (!hf::announces_ints(model_config)) return "";
  const auto schemes = hf::read_int_form(model_config).schemes;
  const auto differs = [&](const hf::IntScheme& scheme) { return scheme != schemes[0]; };
  return std::ranges::any_of(schemes, differs) ? hf::describe(schemes[0]) : "";
}

std::string text_of(const IntFormats& formats) {
  std::string text;
  for (const auto& [name, format] : formats) {
    const ops::quant::IntParts& parts = format.ints;
    text += fmt::format("{} {} {} {:d} {:d} {}\n", format.block, parts.bits,
                        static_cast<int>(parts.scale_type), parts.has_zeros, parts.has_order, name);
  }
  return text;
}

IntFormats parse_int_formats(const std::string& text) {
  IntFormats formats;
  std::istringstream lines(text);
  int64_t group = 0;
  int type = 0;
  ops::quant::IntParts parts;
  std::string name;
  while (lines >> group >> parts.bits >> type >> parts.has_zeros >> parts.has_order &&
         lines.get() == ' ' && std::getline(lines, name)) {
    parts.scale_type = static_cast<Element>(type);
    formats[name] = ops::quant::int_format(group, parts);
  }
  return formats;
}

int keep_ints(Model& model, const IntFormats& formats, at::ScalarType type) {
  auto num_decoded = static_cast<int>(formats.size());
  for (const nn::Linear* layer : keepable_linears(model)) {
    nn::Parameter& weight = layer->weight();
    const auto format = formats.find(weight.name());
    if (format == formats.end() || format->second.ints.bits < kFewestBits) continue;
    weight.set_storage_type(type);
    weight.set_quantization({.format = format->second, .compute = {}});
    --num_decoded;
  }
  return num_decoded;
}

}  // namespace strata::models
