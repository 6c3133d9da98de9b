// libtorch's operators on the emulated GPU: each is an operation of the current stream whose
// arguments are read or written as its schema says, and is computed by libtorch's CPU kernel on the
// memory behind the device's addresses. Never: what has no CPU kernel of its own
// (own_operators.cpp).
#include "operators.h"

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>
#include <fcntl.h>
#include <torch/library.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

namespace emulated_gpu {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Fresh memory and views: libtorch's own, which touch no element.
const std::set<std::string> kAsTheyAre = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::as_strided", "aten::view",
    "aten::view.dtype", "aten::resize_", "aten::_reshape_alias", "aten::set_",
    "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor", "aten::_local_scalar_dense", "aten::record_stream",
    "aten::is_pinned", "aten::_pin_memory", "aten::is_set_to", "aten::unfold", "aten::alias",
    "aten::_efficientzerotensor",
    // Down to cuDNN's calls (cudnn.cpp).
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_forward",
    "aten::_cudnn_attention_backward"};

// Those whose result's shape hangs on values: the host waits for it.
const std::set<std::string> kHoldHostUp = {"aten::nonzero", "aten::masked_select", "aten::_unique2",
                                           "aten::unique_consecutive",
                                           "aten::repeat_interleave.Tensor"};

// These write their argument without a look at what it held.
bool only_writes(const std::string& name) {
  for (const char* filler : {"aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_",
                             "aten::random_", "aten::bernoulli_"}) {
    if (name.starts_with(filler)) return true;
  }
  return false;
}

// These take indices of the host beside tensors of a GPU.
bool takes_host_tensors(const std::string& name) {
  return name == "aten::index.Tensor" || name.starts_with("aten::index_put") ||
         name == "aten::_index_put_impl_";
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Runs of contiguous bytes of a tensor.
template <typename F>
void each_run(const Tensor& t, const F& run) {
  if (t.numel() == 0) return;
  if (t.is_non_overlapping_and_dense()) {
    run(t.const_data_ptr(), t.nbytes());
    return;
  }
  int64_t widest = 0;
  for (int64_t d = 1; d < t.dim(); ++d) {
    if (t.stride(d) > t.stride(widest)) widest = d;
  }
  // An expanded dimension has one element in memory.
  const int64_t count = t.stride(widest) == 0 ? 1 : t.size(widest);
  for (int64_t i = 0; i < count; ++i) each_run(t.select(widest, i), run);
}

enum class Use { kRead, kWritten, kUpdated };

Use use_of(const c10::Argument& argument, const std::string& name) {
  if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) return Use::kRead;
  return argument.kwarg_only() || only_writes(name) ? Use::kWritten : Use::kUpdated;
}

// Whether a scatter leaves nothing of what its first argument held: its places are a permutation of
// all there are.
bool scatters_over_all(const std::string& name, at::ArrayRef<c10::IValue> arguments) {
  if (name != "aten::scatter_.src") return false;
  const Tensor& to = arguments[0].toTensor();
  const Tensor& places = arguments[2].toTensor();
  if (to.dim() != 1 || places.numel() != to.numel()) return false;
  const Tensor sorted = std::get<0>(at::sort(host_view(places)));
  return at::equal(sorted, at::arange(to.numel(), sorted.options()));
}

// Whether a product takes nothing of what it is added to (beta 0) where that is its result's
// memory.
bool adds_to_nothing(const std::string& name, at::ArrayRef<c10::IValue> arguments) {
  return name == "aten::addmm.out" && arguments[3].toScalar().toDouble() == 0 &&
         arguments[0].toTensor().is_same(arguments[5].toTensor());
}

// Of one call: tensors of the device and what stands for them on the host.
class Arguments {
 public:
  explicit Arguments(Operation& operation) : operation_(operation) {}

  Tensor on_host(const Tensor& t, Use use) {
    if (!t.defined() || !t.is_cuda()) return t;
    if (use != Use::kWritten) reads(operation_, t);
    if (use != Use::kRead) writes(operation_, t);
    for (const auto& [given, stand_in] : pairs_) {
      if (given.is_same(t)) return stand_in;
    }
    pairs_.emplace_back(t, host_view(t));
    return pairs_.back().second;
  }

  Tensor on_device(const Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [given, stand_in] : pairs_) {
      if (!stand_in.is_same(result)) continue;
      if (given.sizes() != result.sizes()) {  // an `out` that the operator has resized
        given.resize_(result.sizes());
        fill_from(given, result.contiguous());
      }
      return given;
    }
    for (const auto& [given, stand_in] : pairs_) {
      if (stand_in.numel() > 0 && result.numel() > 0 && stand_in.is_alias_of(result)) {
        return given.as_strided(result.sizes(), result.strides(),
                                given.storage_offset() + result.storage_offset());
      }
    }
    return to_device(operation_, result);
  }

 private:
  void fill_from(const Tensor& to, const Tensor& from) {
    writes(operation_, to);
    host_view(to).copy_(from);
  }

  Operation& operation_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;
};

template <typename F>
void each_tensor(const c10::IValue& value, const F& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

void refuse_mixed_devices(const std::string& name, at::ArrayRef<c10::IValue> arguments) {
  bool has_device = false, has_host = false;
  for (const c10::IValue& argument : arguments) {
    each_tensor(argument, [&](const Tensor& t) {
      has_device |= t.is_cuda();
      has_host |= t.is_cpu() && t.dim() > 0;  // numbers may be of the host
    });
  }
  TORCH_CHECK(!(has_device && has_host) || takes_host_tensors(name), "emulated GPU: ", name,
              " was given tensors of the host beside those of the device");
}

c10::IValue on_host(Arguments& arguments, const c10::IValue& value, Use use) {
  if (value.isTensor()) return arguments.on_host(value.toTensor(), use);
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(at::kCPU);
  if (value.isTensorList()) {
    std::vector<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(arguments.on_host(t, use));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t ? std::optional(arguments.on_host(*t, use)) : std::nullopt);
    }
    return list;
  }
  return value;
}

c10::IValue on_device(Arguments& arguments, const c10::IValue& value) {
  if (value.isTensor()) return arguments.on_device(value.toTensor());
  if (!value.isTensorList()) return value;
  std::vector<Tensor> list;
  for (const Tensor& t : value.toTensorVector()) list.push_back(arguments.on_device(t));
  return list;
}

const char* kept_name(const std::string& name) {
  static auto* names = new std::set<std::string>;
  const std::lock_guard lock(machine_mutex());
  return names->insert(name).first->c_str();
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  const size_t count = schema.arguments().size();
  refuse_mixed_devices(name, torch::jit::last(*stack, count));
  const bool leaves_nothing = scatters_over_all(name, torch::jit::last(*stack, count)) ||
                              adds_to_nothing(name, torch::jit::last(*stack, count));
  const cudaStream_t stream = current_stream();
  {
    Operation operation(kept_name(name), stream);
    Arguments arguments(operation);
    Stack inner;
    for (size_t i = 0; i < count; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      const Use use = leaves_nothing && i == 0 ? Use::kWritten : use_of(argument, name);
      inner.push_back(argument.name() == "pin_memory"
                          ? c10::IValue()
                          : on_host(arguments, torch::jit::peek(*stack, i, count), use));
    }
    torch::jit::drop(*stack, count);
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      op.callBoxed(&inner);
    }
    for (const c10::IValue& result : inner) stack->push_back(on_device(arguments, result));
  }
  if (kHoldHostUp.contains(name)) host_waits_for_stream(stream);
}

// Copies between the host and the device, as libtorch makes them: with memory that is locked, and
// where the caller asks for it, behind the host's back.
Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.numel() == 0) return to;
  const cudaStream_t stream = current_stream();
  const Tensor& on_host = to.is_cuda() ? from : to;
  const bool is_locked = on_host.is_cpu() && block_of(on_host.const_data_ptr()) != nullptr;
  const bool goes_on = on_host.is_cuda() || (non_blocking && (is_locked || to.is_cuda()));
  TORCH_CHECK(
      !goes_on || !is_locked ||
          (to.is_contiguous() && from.is_contiguous() && to.scalar_type() == from.scalar_type()),
      "emulated GPU: found a copy that needs a buffer, expected none where the host goes on");
  {
    Operation operation("a tensor's copy", stream, Reading::kMoves);
    reads(operation, from);
    writes(operation, to);
    host_view(to).copy_(host_view(from));
  }
  if (!goes_on) {
    host_waits_for_stream(stream);
  } else if (is_locked) {
    const c10::DataPtr& data = on_host.storage().data_ptr();
    at::getHostAllocator(at::kCUDA)->record_event(data.get(), data.get_context(),
                                                  c10::cuda::getCurrentCUDAStream().unwrap());
  }
  return to;
}

// The dispatcher says on stderr that kernels are replaced, hundreds of times.
class Silence {
 public:
  Silence() : kept_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
  }
  ~Silence() {
    std::fflush(stderr);
    dup2(kept_, STDERR_FILENO);
    close(kept_);
  }

 private:
  int kept_;
};

struct Installed {
  Installed() {
    const Silence silence;
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__,
                                  __LINE__);
    std::set<std::string> kept = kAsTheyAre;
    library.impl("copy_", TORCH_FN(copy));
    kept.insert("aten::copy_");
    install_own_operators(library, kept);
    install_attention(library, kept);
    auto& dispatcher = c10::Dispatcher::singleton();
    static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (!op || !name.name.starts_with("aten::") || kept.contains(c10::toString(name)) ||
          !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
        continue;
      }
      handles->push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_on_cpu>(),
          {}, nullptr, "emulated GPU"));
    }
  }
};
const Installed installed;

}  // namespace

Tensor host_view(const Tensor& t) {
  if (!t.defined()) return t;
  const auto options = t.options().device(at::kCPU).requires_grad(false);
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), options);
  return at::from_blob(alias_of(t.const_data_ptr()), t.sizes(), t.strides(), options);
}

Tensor to_device(Operation& operation, const Tensor& on_host) {
  const Tensor made = at::empty_strided(on_host.sizes(), on_host.strides(),
                                        on_host.options().device(at::kCUDA).pinned_memory(false));
  writes(operation, made);
  host_view(made).copy_(on_host);
  return made;
}

void reads(Operation& operation, const Tensor& t) {
  each_run(t, [&](const void* at, size_t bytes) { operation.reads(at, bytes); });
}
void writes(Operation& operation, const Tensor& t) {
  each_run(t, [&](const void* at, size_t bytes) { operation.writes(at, bytes); });
}

}  // namespace emulated_gpu
