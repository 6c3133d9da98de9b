#include "strata/train/loop/broken_weight.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/checkpoint/finite_values.h"
#include "strata/comm/agreement.h"
#include "strata/shard/segments.h"

namespace strata::train {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 18;
constexpr double kNowhere = 1e18;  // beyond every tensor

// Of a tensor of all units, counted in their order: its number, the element, and what that holds.
struct Finding {
  double tensor = kNowhere;
  double element = 0;
  double kind = 0;  // 1: nan, 2: inf, 3: -inf
};

double kind_of(double value) { return std::isnan(value) ? 1 : value > 0 ? 2 : 3; }

// The first element that is not finite, with its kind. Requires: there is one.
Finding locate(const at::Tensor& values, int64_t first_element) {
  for (int64_t begin = 0; begin < values.numel(); begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, values.numel() - begin);
    const at::Tensor some = values.narrow(0, begin, count).to(at::kFloat);
    const at::Tensor broken = at::isfinite(some).logical_not();
    if (!broken.any().item<bool>()) continue;
    const auto at = broken.to(at::kByte).argmax().item<int64_t>();
    return {.element = static_cast<double>(first_element + begin + at),
            .kind = kind_of(some[at].item<double>())};
  }
  return {};
}

// Searches a matrix in codes; every rank has it whole.
std::optional<Finding> look_into_codes(const nn::Parameter& parameter, const at::Tensor& bytes) {
  const at::Tensor values = parameter.decoded(bytes, at::kFloat).reshape({-1});
  if (checkpoint::is_finite(values)) return std::nullopt;
  return locate(values, 0);
}

// This rank's first one. Collective where there are codes.
Finding look_at_own(shard::UnitStore& store) {
  const int rank = store.mesh().shard->rank();
  Finding first;
  double number = 0;
  for (const shard::SegmentPlace& place : shard::segments_of(store)) {
    const double base = number;
    number += static_cast<double>(place.layout->extents.size());
    const auto note = [&](const nn::Parameter* parameter, Finding found) {
      const auto& extents = place.layout->extents;
      const auto it = std::ranges::find(extents, parameter, &shard::Extent::parameter);
      found.tensor = base + static_cast<double>(it - extents.begin());
      if (found.tensor < first.tensor) first = found;
    };
    const auto& extents = place.layout->extents;
    if (std::ranges::any_of(extents, [](const shard::Extent& extent) {
          return extent.parameter->quantization().has_value();
        })) {
      store.with_stored(place.unit, place.segment, [&](const at::Tensor& whole) {
        for (const shard::Extent& extent : extents) {
          const nn::Parameter& parameter = *extent.parameter;
          const at::Tensor bytes = whole.narrow(0, extent.begin, parameter.stored_numel());
          if (const auto found = look_into_codes(parameter, bytes)) note(&parameter, *found);
        }
      });
      continue;
    }
    for (const shard::Piece& piece : shard::pieces_of(*place.layout, rank)) {
      const at::Tensor values =
          shard::value_of(store, {.unit = place.unit, .segment = place.segment, .piece = piece});
      if (!checkpoint::is_finite(values)) note(piece.parameter, locate(values, piece.tensor_begin));
    }
    if (store.file() != nullptr) store.file()->forget_pages();
  }
  return first;
}

// Of all ranks the first, whose lowest element counts where several hold a part of its tensor.
Finding first_of_all(comm::Group& world, const Finding& own) {
  at::Tensor tensor = at::full({1}, -own.tensor, at::kDouble);
  world.all_reduce(tensor, comm::Reduction::kMax)->wait();
  const double first = -tensor.item<double>();
  const bool has_it = own.tensor == first;
  at::Tensor element = at::full({1}, has_it ? -own.element : -kNowhere, at::kDouble);
  world.all_reduce(element, comm::Reduction::kMax)->wait();
  const double where = -element.item<double>();
  at::Tensor kind = at::full({1}, has_it && own.element == where ? own.kind : 0, at::kDouble);
  world.all_reduce(kind, comm::Reduction::kMax)->wait();
  return {.tensor = first, .element = where, .kind = kind.item<double>()};
}

const nn::Parameter& parameter_number(shard::UnitStore& store, size_t number) {
  for (const shard::SegmentPlace& place : shard::segments_of(store)) {
    const auto& extents = place.layout->extents;
    if (number < extents.size()) return *extents[number].parameter;
    number -= extents.size();
  }
  throw InternalError("weights: found no tensor {}, expected one; report this as a bug", number);
}

std::vector<int64_t> place_of(int64_t element, const std::vector<int64_t>& shape) {
  std::vector<int64_t> place(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    place[d] = element % shape[d];
    element /= shape[d];
  }
  return place;
}

}  // namespace

std::string BrokenWeight::text() const {
  return place.empty() ? fmt::format("\"{}\"", tensor)
                       : fmt::format("\"{}\" at [{}]", tensor, fmt::join(place, ", "));
}

std::optional<BrokenWeight> find_broken_weight(shard::UnitStore& store) {
  store.finish_transfers();
  const Finding found = first_of_all(*store.mesh().world, look_at_own(store));
  if (found.tensor >= kNowhere) return std::nullopt;
  const nn::Parameter& parameter = parameter_number(store, static_cast<size_t>(found.tensor));
  constexpr std::array kValues = {"", "nan", "inf", "-inf"};
  BrokenWeight broken{.tensor = parameter.name(),
                      .value = kValues[static_cast<size_t>(found.kind)],
                      .place = {},
                      .is_frozen = !parameter.requires_grad()};
  if (!parameter.quantization()) {
    broken.place = place_of(static_cast<int64_t>(found.element), parameter.shape());
  }
  return broken;
}

}  // namespace strata::train
