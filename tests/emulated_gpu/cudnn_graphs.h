// What cuDNN is told of a graph, read along on the way to it: the tensors of the plan that comes of
// it, by the numbers that libtorch gives them. Numbers are those of cudnn_graph.h of cuDNN 9.
// Threads: any. Owns: the records. Never: a call of cuDNN's.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace emulated_gpu::cudnn {

using Descriptor = void*;

// Types of attributes.
enum Type {
  kHandle = 0,
  kDataType = 1,
  kInt64 = 3,
  kAddress = 6,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kChar = 24
};
enum Attribute {
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kPlanConfiguration = 401,
  kPlanWorkspaceSize = 402,
  kPackNumbers = 1000,
  kPackAddresses = 1001,
  kPackWorkspace = 1003,
  kDeviceAsJson = 2702
};
constexpr int kDeviceKind = 38;  // of a descriptor

struct GraphTensor {
  std::vector<int64_t> sizes, strides;
  int64_t type = -1, alignment = 1;
};

struct Graph {
  std::map<int64_t, GraphTensor> tensors;
  bool counts_places = false;  // as a causal mask does
};

// A variant pack: where the tensors of a call are.
struct Pack {
  std::map<int64_t, void*> addresses;
  void* workspace = nullptr;
};

void note_gone(Descriptor gone);
void note_attribute(Descriptor of, int attribute, int type, int64_t count, const void* values);
// What cuDNN answers to a question about a graph belongs to that graph.
void note_results(Descriptor heuristics, int64_t count, const Descriptor* configurations);

Graph graph_of_plan(Descriptor plan);
Pack pack_of(Descriptor variant_pack);

}  // namespace emulated_gpu::cudnn
