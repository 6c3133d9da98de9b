// NCCL's collectives as a Group, and its meeting through the rendezvous. Never: tensors of the
// host.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "strata/base/error.h"
#include "strata/comm/liveness.h"
#include "strata/comm/nccl_group.h"
#include "strata/comm/nccl_watch.h"

namespace strata::comm {
namespace {

// What NCCL takes of a GPU beside libtorch's allocator, it does not name where it lacks it.
constexpr size_t kLittleMemory = size_t{1} << 30;

std::string memory_if_short(ncclResult_t result) {
  size_t free = 0, total = 0;
  if (result != ncclUnhandledCudaError || cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  if (free > kLittleMemory) return "";
  return fmt::format(
      "; of the GPU's memory {} MB of {} are free, which may be too little for NCCL: lower "
      "per_device_train_batch_size or max_length",
      free / 1000000, total / 1000000);
}

void require(ncclResult_t result, const char* collective, int rank) {
  if (result == ncclSuccess) return;
  throw CommError(
      "collective {} of rank {}: found an error of NCCL ({}), expected every rank to take part; "
      "look at the first failing rank's message, or set NCCL_DEBUG=INFO{}",
      collective, rank, ncclGetErrorString(result), memory_if_short(result));
}

ncclDataType_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    default:
      throw InternalError("nccl: found tensors of {}, expected a type that it knows; report this",
                          c10::toString(tensor.scalar_type()));
  }
}

// Collectives wait for each other on the stream; their tensors may be used again after `done_`.
class NcclWork final : public Work {
 public:
  NcclWork(const NcclWatch& watch, std::shared_ptr<c10::cuda::CUDAEvent> done, at::Device device)
      : watch_(watch), done_(std::move(done)), device_(device) {}

  void wait() override {
    watch_.require_alive();
    done_->block(c10::cuda::getCurrentCUDAStream(device_.index()));
  }

 private:
  const NcclWatch& watch_;
  std::shared_ptr<c10::cuda::CUDAEvent> done_;
  at::Device device_;
};

class NcclGroup final : public Group, public Liveness {
 public:
  NcclGroup(const NcclWatched& watched, int size)
      : communicator_(watched.communicator),
        rank_(watched.rank),
        size_(size),
        exceptions_(std::uncaught_exceptions()),
        device_(watched.device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_.index())),
        watch_(watched) {}
  ~NcclGroup() override {
    // After a failure the others may be gone.
    if (std::uncaught_exceptions() <= exceptions_) watch_.end_orderly();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Transport transport() const override { return Transport::kNccl; }
  void require_alive() const override { watch_.require_alive(); }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    check("all-gather", out, in, in.numel() * size_ == out.numel());
    count_all_gather(in);
    return start("all-gather", [&](cudaStream_t stream) {
      return ncclAllGather(in.const_data_ptr(), out.mutable_data_ptr(),
                           static_cast<size_t>(in.numel()), type_of(in), communicator_, stream);
    });
  }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    check("reduce-scatter", out, in, out.numel() * size_ == in.numel());
    count_reduce_scatter(out);
    return start("reduce-scatter", [&](cudaStream_t stream) {
      return ncclReduceScatter(in.const_data_ptr(), out.mutable_data_ptr(),
                               static_cast<size_t>(out.numel()), type_of(in), ncclSum,
                               communicator_, stream);
    });
  }
  std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, Reduction op) override {
    check("all-reduce", tensor, tensor, true);
    count_all_reduce(tensor);
    return start("all-reduce", [&](cudaStream_t stream) {
      return ncclAllReduce(tensor.const_data_ptr(), tensor.mutable_data_ptr(),
                           static_cast<size_t>(tensor.numel()), type_of(tensor),
                           op == Reduction::kSum ? ncclSum : ncclMax, communicator_, stream);
    });
  }
  std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root) override {
    check("broadcast", tensor, tensor, true);
    return start("broadcast", [&](cudaStream_t stream) {
      return ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(),
                           static_cast<size_t>(tensor.numel()), type_of(tensor), root,
                           communicator_, stream);
    });
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    check("all-to-all", out, in, out.numel() == in.numel() && in.numel() % size_ == 0);
    count_all_to_all(in);
    return start("all-to-all", [&](cudaStream_t stream) {
      const size_t bytes = in.nbytes() / static_cast<size_t>(size_);
      const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
      auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
      ncclResult_t result = ncclGroupStart();
      for (int r = 0; r < size_ && result == ncclSuccess; ++r) {
        const size_t part = static_cast<size_t>(r) * bytes;
        result = ncclSend(from + part, bytes, ncclUint8, r, communicator_, stream);
        if (result != ncclSuccess) break;
        result = ncclRecv(to + part, bytes, ncclUint8, r, communicator_, stream);
      }
      const ncclResult_t end = ncclGroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    const bool is_root = rank_ == root;
    check("scatter", out, is_root ? in : out, !is_root || out.numel() * size_ == in.numel());
    count_scatter(out, root);
    return start("scatter", [&](cudaStream_t stream) {
      const auto bytes = static_cast<size_t>(out.nbytes());
      ncclResult_t result = ncclGroupStart();
      for (int r = 0; is_root && r < size_ && result == ncclSuccess; ++r) {
        const auto* part =
            static_cast<const std::byte*>(in.const_data_ptr()) + static_cast<size_t>(r) * bytes;
        result = ncclSend(part, bytes, ncclUint8, r, communicator_, stream);
      }
      if (result == ncclSuccess) {
        result = ncclRecv(out.mutable_data_ptr(), bytes, ncclUint8, root, communicator_, stream);
      }
      const ncclResult_t end = ncclGroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }
  void meet() override {
    const at::Tensor one = at::zeros({1}, at::TensorOptions().device(device_));
    start_all_reduce(one, Reduction::kSum)->wait();
    c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
  }

  static void check(const char* what, const at::Tensor& out, const at::Tensor& in, bool fits) {
    if (fits && out.is_contiguous() && in.is_contiguous() && out.is_cuda() && in.is_cuda() &&
        out.scalar_type() == in.scalar_type()) {
      return;
    }
    throw InternalError(
        "{} through nccl: found {} elements of {} on {} for {} of {} on {}, expected contiguous "
        "tensors of one type on the GPU that fit the group; report this as a bug",
        what, in.numel(), c10::toString(in.scalar_type()), in.device().str(), out.numel(),
        c10::toString(out.scalar_type()), out.device().str());
  }

  template <typename F>
  std::unique_ptr<Work> start(const char* collective, F&& call) {
    watch_.begin(collective);
    const c10::cuda::CUDAGuard on_device(device_);
    c10::cuda::CUDAEvent ready;
    auto done = std::make_shared<c10::cuda::CUDAEvent>();
    ready.record(c10::cuda::getCurrentCUDAStream(device_.index()));
    ready.block(stream_);
    const ncclResult_t result = call(stream_.stream());
    if (result != ncclSuccess) watch_.require_alive();  // it knows the cause of what it has ended
    require(result, collective, rank_);
    done->record(stream_);
    watch_.is_over_at(done);
    return std::make_unique<NcclWork>(watch_, std::move(done), device_);
  }

  ncclComm_t communicator_;
  int rank_;
  int size_;
  int exceptions_;
  at::Device device_;
  c10::cuda::CUDAStream stream_;
  NcclWatch watch_;
};

}  // namespace

std::string name_of_gpu(at::Device device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device.index()) != cudaSuccess) {
    throw ConfigError("{}: found no such GPU, expected one a rank; check CUDA_VISIBLE_DEVICES",
                      device.str());
  }
  std::string name;
  for (const char byte : properties.uuid.bytes) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

namespace {

// Rank 0's, through the store.
ncclUniqueId shared_id(Rendezvous& rendezvous, const std::string& key, int rank, int size) {
  ncclUniqueId id{};
  if (rank == 0) {
    require(ncclGetUniqueId(&id), "connect", rank);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
    // Alone it has nobody to tell.
    if (size > 1) rendezvous.store().set(key, std::vector<uint8_t>(bytes, bytes + sizeof(id)));
    return id;
  }
  try {
    const std::vector<uint8_t> bytes = rendezvous.store().get(key);
    std::memcpy(&id, bytes.data(), std::min(bytes.size(), sizeof(id)));
  } catch (const std::exception& error) {  // of the store
    const std::string reason = error.what();
    throw CommError(
        "connect of rank {}: found nothing of {}'s first rank ({}), expected every rank to take "
        "part; look at the first failing rank's message",
        rank, key, reason.substr(0, reason.find('\n')));
  }
  return id;
}

}  // namespace

std::unique_ptr<Group> make_nccl_group(Rendezvous& rendezvous, const std::string& name,
                                       const std::vector<int>& ranks, at::Device device,
                                       std::function<bool()> has_lost_peer) {
  const auto self = std::find(ranks.begin(), ranks.end(), rendezvous.options().rank);
  const int rank = static_cast<int>(self - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  const c10::cuda::CUDAGuard on_device(device);
  // The launcher looks at the clock: here the host waits for the others.
  std::optional<Status::Waiting> waiting;
  Status* const status = rendezvous.options().status;
  if (status != nullptr) waiting.emplace(*status, "connect", name, /*number=*/1);
  const ncclUniqueId id = shared_id(rendezvous, "nccl/" + name, rank, size);
  // NCCL takes its buffers from the device: what libtorch keeps for later is not there for it.
  c10::cuda::CUDACachingAllocator::emptyCache();
  ncclComm_t communicator = nullptr;
  require(ncclCommInitRank(&communicator, size, id, rank), "connect", rank);
  return std::make_unique<NcclGroup>(NcclWatched{.communicator = communicator,
                                                 .rank = rank,
                                                 .device = device,
                                                 .timeout = rendezvous.options().timeout,
                                                 .group = name + " (nccl)",
                                                 .status = status,
                                                 .has_lost_peer = std::move(has_lost_peer)},
                                     size);
}

}  // namespace strata::comm
