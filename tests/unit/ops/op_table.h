// The table of ops: for every op what it gives and what it should give, for every gradient the
// function it belongs to, and for every op one size that is worth timing. The tests walk it, and so
// does `test_ops --perf`. Never: tolerances of a test.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace strata::ops {

// What a size means depends on the op: tokens x channels, rows x vocabulary, ...
struct OpSize {
  int64_t rows, columns = 1, third = 1;
};

struct Comparison {
  std::string what;
  at::Tensor found, expected;  // expected in double
};

// A gradient that the op gives at `x` of the scalar function `value`.
struct Slope {
  std::string what;
  at::Tensor x, gradient;
  std::function<double(const at::Tensor&)> value;
};

// One op with arguments of one size and type.
struct OpCase {
  std::vector<Comparison> comparisons;
  std::vector<Slope> slopes = {};  // fp32 only
  std::function<void()> run = {};  // the work that is timed
  double bytes = 0;                // that it moves at least, each tensor once
  double flops = 0;                // where they matter more than the bytes
};

// On which device a case is made; what is expected is computed on the CPU.
using MakeCase = OpCase (*)(const OpSize&, at::ScalarType, at::Device);

struct OpRow {
  std::string name;
  std::vector<at::ScalarType> types;
  std::vector<OpSize> sizes;
  OpSize timed;
  MakeCase make;
  bool narrow_on_gpu = false;  // see types_on() of devices.h
};

std::span<const OpRow> op_table();

// max |found - expected| relative to max |expected|.
double error_of(const Comparison& comparison);

}  // namespace strata::ops
