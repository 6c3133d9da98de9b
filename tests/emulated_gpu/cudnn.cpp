// The calls of cuDNN that libtorch's attention makes. cuDNN itself takes the graphs and compiles
// its kernels, for an H100 that is described to it in place of a handle: what it refuses there, it
// refuses here. What a plan would run is computed from the definition, from the bytes that the
// graph's sizes and strides name.
#include <ATen/ATen.h>
#include <dlfcn.h>

#include <cstring>
#include <string_view>

#include "attention_definition.h"
#include "call.h"
#include "cudnn_graphs.h"

namespace emulated_gpu::cudnn {
namespace {

using at::Tensor;

// libtorch's numbers of attention's tensors (ATen/native/cudnn/MHA.cpp).
enum Number {
  kQ,
  kK,
  kV,
  kOut,
  kScale = 5,
  kLse = 8,
  kOutGradient,
  kQGradient,
  kKGradient,
  kVGradient
};

// What cuDNN asks of a device, and what an H100 answers.
constexpr std::string_view kH100 = R"({"deviceName": "NVIDIA H100 80GB HBM3", "cudaDeviceId": 0,
"deviceVer": 900, "driverVer": 13000, "totalGlobalMem": 85520809984, "multiProcessorCount": 132,
"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "warpSize": 32,
"regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxThreadsPerBlock": 1024,
"maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "pciDeviceId": 0,
"isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
"l2CacheSize": 52428800})";

template <typename Function>
Function* of_cudnn(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) fail("found no %s in cuDNN", name);
  return reinterpret_cast<Function*>(found);
}
int create(int kind, Descriptor* made) {
  static auto* call = of_cudnn<int(int, Descriptor*)>("cudnnBackendCreateDescriptor");
  return call(kind, made);
}
int set(Descriptor of, int attribute, int type, int64_t count, const void* values) {
  static auto* call =
      of_cudnn<int(Descriptor, int, int, int64_t, const void*)>("cudnnBackendSetAttribute");
  return call(of, attribute, type, count, values);
}
int get(Descriptor of, int attribute, int type, int64_t most, int64_t* count, void* values) {
  static auto* call =
      of_cudnn<int(Descriptor, int, int, int64_t, int64_t*, void*)>("cudnnBackendGetAttribute");
  return call(of, attribute, type, most, count, values);
}
int finalize(Descriptor of) {
  static auto* call = of_cudnn<int(Descriptor)>("cudnnBackendFinalize");
  return call(of);
}

Descriptor h100() {
  static const Descriptor device = [] {
    Descriptor made = nullptr;
    const auto size = static_cast<int64_t>(kH100.size());
    if (create(kDeviceKind, &made) != 0 ||
        set(made, kDeviceAsJson, kChar, size, kH100.data()) != 0 || finalize(made) != 0) {
      fail("cuDNN does not take the description of an H100");
    }
    return made;
  }();
  return device;
}

at::ScalarType type_of(int64_t type) {
  constexpr int64_t kFloat = 0, kHalf = 2, kBFloat16 = 9;
  if (type != kFloat && type != kHalf && type != kBFloat16) fail("cuDNN: found type %ld", type);
  return type == kFloat ? at::kFloat : type == kHalf ? at::kHalf : at::kBFloat16;
}

// The tensors of one execution of a plan.
class Tensors {
 public:
  Tensors(const Graph& graph, Pack pack) : graph_(graph), pack_(std::move(pack)) {}

  bool has(Number number) const { return pack_.addresses.contains(number); }
  // On the device, as the graph describes it: [B, H, S, D].
  Tensor at(Number number) const {
    const auto& found = graph_.tensors.find(number);
    if (found == graph_.tensors.end() || !has(number)) fail("cuDNN: found no tensor %d", number);
    const GraphTensor& tensor = found->second;
    void* address = pack_.addresses.at(number);
    if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(tensor.alignment) != 0) {
      fail("cuDNN: found tensor %d at %p, expected a multiple of %ld", number, address,
           tensor.alignment);
    }
    const at::Device device(at::kCUDA, c10::cuda::current_device());
    const Tensor made = at::for_blob(address, tensor.sizes)
                            .strides(tensor.strides)
                            .options(at::TensorOptions().dtype(type_of(tensor.type)).device(device))
                            .target_device(device)
                            .make_tensor();
    // The graph has some of them transposed, ready for a product; channels are what lies together.
    return made.stride(3) == 1 ? made : made.transpose(2, 3);
  }
  float scale() const { return *static_cast<const float*>(pack_.addresses.at(kScale)); }

 private:
  const Graph& graph_;
  Pack pack_;
};

// [B, H, S, D] as [B * S, H, D] and back; [B, H, S, 1] as [H, B * S] and back.
Tensor tokens(const Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }
Tensor batch(const Tensor& x, int64_t length) {
  return x.unflatten(0, {-1, length}).transpose(1, 2);
}
Tensor token_lse(const Tensor& x) { return x.squeeze(-1).transpose(0, 1).flatten(1); }
Tensor batch_lse(const Tensor& x, int64_t length) {
  return x.unflatten(1, {-1, length}).transpose(0, 1).unsqueeze(-1);
}

Documents documents_of(const Tensor& q) {
  Documents documents;
  for (int64_t row = 0; row < q.size(0); ++row) {
    documents.push_back({row * q.size(2), q.size(2), row * q.size(2), q.size(2)});
  }
  return documents;
}

void attend(Call& call, const Tensors& all) {
  const Tensor q = all.at(kQ);
  const auto in = [&](Number number) { return tokens(call.in_fp32(all.at(number))); };
  const Inputs x{in(kQ), in(kK), in(kV)};
  const Documents documents = documents_of(q);
  if (!all.has(kOutGradient)) {
    const Attended found = emulated_gpu::attend(x, documents, all.scale(), Mask{});
    call.into(all.at(kOut), batch(at::cat(found.out), q.size(2)));
    call.into(all.at(kLse), batch_lse(at::cat(found.lse, 1), q.size(2)));
    return;
  }
  const Gradients found =
      gradients(in(kOutGradient), x, in(kOut), token_lse(call.in_fp32(all.at(kLse))), documents,
                all.scale(), Mask{});
  call.into(all.at(kQGradient), batch(found.q, q.size(2)));
  call.into(all.at(kKGradient), batch(found.k, q.size(2)));
  call.into(all.at(kVGradient), batch(found.v, q.size(2)));
}

struct Handle {
  cudaStream_t stream = nullptr;
};

}  // namespace
}  // namespace emulated_gpu::cudnn

using namespace emulated_gpu;
using cudnn::Descriptor;

extern "C" {

// Handles know a stream, and nothing that cuDNN could use.
int cudnnCreate(cudnn::Handle** handle) {
  *handle = new cudnn::Handle;
  return 0;
}
int cudnnDestroy(cudnn::Handle* handle) {
  delete handle;
  return 0;
}
int cudnnSetStream(cudnn::Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return 0;
}
int cudnnGetStream(cudnn::Handle* handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return 0;
}

int cudnnBackendDestroyDescriptor(Descriptor gone) {
  static auto* call = cudnn::of_cudnn<int(Descriptor)>("cudnnBackendDestroyDescriptor");
  cudnn::note_gone(gone);
  return call(gone);
}
int cudnnBackendSetAttribute(Descriptor of, int attribute, int type, int64_t count,
                             const void* values) {
  if (type == cudnn::kHandle) return 0;
  const int status = cudnn::set(of, attribute, type, count, values);
  if (status != 0) return status;
  cudnn::note_attribute(of, attribute, type, count, values);
  if (attribute != cudnn::kHeuristicsGraph) return status;
  const Descriptor device = cudnn::h100();
  return cudnn::set(of, cudnn::kHeuristicsDevice, cudnn::kDescriptor, 1, &device);
}
int cudnnBackendGetAttribute(Descriptor of, int attribute, int type, int64_t most, int64_t* count,
                             void* values) {
  const int status = cudnn::get(of, attribute, type, most, count, values);
  if (status == 0 && attribute == cudnn::kHeuristicsResults && values != nullptr) {
    cudnn::note_results(of, std::min(most, *count), static_cast<const Descriptor*>(values));
  }
  return status;
}
int cudnnBackendExecute(cudnn::Handle* handle, Descriptor plan, Descriptor variant_pack) {
  const cudnn::Graph graph = cudnn::graph_of_plan(plan);
  if (!graph.counts_places) fail("cuDNN: found a graph without a causal mask");
  if (handle->stream != c10::cuda::getCurrentCUDAStream().stream()) {
    fail("cuDNN: found a handle of another stream");
  }
  const cudnn::Pack pack = cudnn::pack_of(variant_pack);
  const cudnn::Tensors tensors(graph, pack);
  const bool is_backward = tensors.has(cudnn::kOutGradient);
  Call call(is_backward ? "cuDNN's attention's gradient" : "cuDNN's attention");
  int64_t count = 0, size = 0;
  if (cudnn::get(plan, cudnn::kPlanWorkspaceSize, cudnn::kInt64, 1, &count, &size) == 0 &&
      size > 0) {
    call.scratch(pack.workspace, static_cast<size_t>(size));
  }
  try {
    cudnn::attend(call, tensors);
  } catch (const std::exception& error) {
    fail("cuDNN: %s", error.what());  // the program would take another kernel and go on
  }
  return 0;
}

}  // extern "C"
