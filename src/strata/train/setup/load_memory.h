// What loading the model took, rank by rank: the four figures that public guides on sharded loading
// show. Owns: the measurement. Never: prints.
// Source: the peak-memory tracer of PEFT's examples, which prints the same figures.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "strata/base/resident_memory.h"
#include "strata/comm/group.h"

namespace strata::train {

// Bytes of one memory.
struct LoadFigures {
  double before = 0;      // in use before loading
  double consumed = 0;    // more in use after it
  double peak = 0;        // more in use at its peak
  double total_peak = 0;  // in use at its peak
};

// Memory of one rank. A device's is that in tensors; zeros where the CPU computes.
struct LoadMemory {
  LoadFigures host, device;
};

// Measures from construction to finish().
class LoadMeter {
 public:
  explicit LoadMeter(at::Device device);
  // Collective: every rank's figures, in rank order.
  std::vector<LoadMemory> finish(comm::Group& world);

 private:
  at::Device device_;
  int64_t device_before_;
  PeakWatch watch_;
};

// The table, a line each: "CPU memory (MB) of rank 0: before loading 926, ...". MB are 2^20 bytes.
// Of more than 16 ranks the first ones, then the largest of all. Where a GPU computes, a second row
// for each rank with its device's memory.
std::vector<std::string> describe_load_memory(const std::vector<LoadMemory>& ranks,
                                              at::Device device);

}  // namespace strata::train
