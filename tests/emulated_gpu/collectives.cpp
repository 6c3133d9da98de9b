// NCCL's calls between processes of one machine, each with an emulated GPU: through memory that all
// ranks of a communicator map. A call is an operation of its stream and returns when all
// ranks have made it; ranks that make different calls end with a message. Sums are taken in fp32 in
// the order of the ranks. A call whose communicator is aborted returns without a result, and the
// abort itself when every other rank has left the communicator or died, as NCCL's own threads wait
// for their connections to close. EMULATED_NCCL_BREAKS=n: the n-th call of the process, and what
// comes behind it on the communicator, brings nothing: the error is asynchronous, and a host that
// waits is let go by the abort alone.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "broken_wait.h"
#include "stream_order.h"

namespace emulated_gpu {
namespace {

constexpr int kMostRanks = 64;
constexpr size_t kMostBytes = size_t{1}
                              << 30;  // of a rank's input; what is not used takes no memory
// A rank that has gone is the launcher's affair, which ends the others.
constexpr std::chrono::seconds kPatience(300);

// What a rank is about to do; equal on all ranks.
struct Announced {
  char name[32];
  size_t count;
  int type, op, root;
  bool operator==(const Announced&) const = default;
};

struct Shared {
  std::atomic<int> arrived;
  std::atomic<uint32_t> round;
  Announced announced[kMostRanks];
  size_t bytes[kMostRanks];
  std::atomic<int> process[kMostRanks];
  std::atomic<bool> has_left[kMostRanks];

  // Behind this header.
  std::byte* input_of(int rank) {
    return reinterpret_cast<std::byte*>(this + 1) + static_cast<size_t>(rank) * kMostBytes;
  }
};

size_t size_of_memory(int ranks) {
  return sizeof(Shared) + static_cast<size_t>(ranks) * kMostBytes;
}

Shared* map_memory(const char* name, int ranks) {
  const size_t bytes = size_of_memory(ranks);
  const int file = shm_open(name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    fail("could not open %s of %zu bytes", name, bytes);
  }
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (at == MAP_FAILED) fail("could not map %s of %zu bytes", name, bytes);
  return static_cast<Shared*>(at);
}

bool has_died(int process) {
  if (kill(process, 0) != 0) return true;
  const std::string file = "/proc/" + std::to_string(process) + "/stat";
  char text[512] = {};
  std::FILE* stat = std::fopen(file.c_str(), "r");
  if (stat == nullptr) return true;
  const size_t size = std::fread(text, 1, sizeof text - 1, stat);
  std::fclose(stat);
  const char* name_end = size > 0 ? std::strrchr(text, ')') : nullptr;
  return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'Z';
}

bool breaks_now() {
  static const char* wanted = std::getenv("EMULATED_NCCL_BREAKS");
  static std::atomic<int> calls{0};
  return wanted != nullptr && ++calls == std::atoi(wanted);
}

at::ScalarType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return at::kFloat;
    case ncclFloat64:
      return at::kDouble;
    case ncclFloat16:
      return at::kHalf;
    case ncclBfloat16:
      return at::kBFloat16;
    case ncclInt64:
      return at::kLong;
    case ncclInt32:
      return at::kInt;
    case ncclInt8:
      return at::kChar;
    case ncclUint8:
      return at::kByte;
    default:
      fail("found the type %d of NCCL", static_cast<int>(type));
  }
}

}  // namespace
}  // namespace emulated_gpu

using emulated_gpu::Announced;
using emulated_gpu::Operation;
using emulated_gpu::Reading;

struct ncclComm {
  std::string name;
  int rank, size;
  emulated_gpu::Shared* shared;
  std::atomic<bool> is_aborted = false, is_broken = false;

  // Until all ranks have come; false: the communicator was aborted meanwhile.
  bool meet() {
    const uint32_t round = shared->round.load();
    if (shared->arrived.fetch_add(1) + 1 == size) {
      shared->arrived.store(0);
      shared->round.store(round + 1);
      return true;
    }
    const auto since = std::chrono::steady_clock::now();
    while (shared->round.load() == round) {
      if (is_aborted) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (std::chrono::steady_clock::now() - since > emulated_gpu::kPatience) {
        emulated_gpu::fail("rank %d waits for the others of %s", rank, name.c_str());
      }
    }
    return true;
  }

  // Shows `bytes` of every rank to `take(rank, its bytes, their number)`.
  template <typename Take>
  bool exchange(const Announced& announced, const void* from, size_t bytes, const Take& take) {
    if (emulated_gpu::breaks_now()) {
      is_broken = true;
      emulated_gpu::break_waits(is_aborted);
    }
    if (is_broken || is_aborted) return false;
    shared->announced[rank] = announced;
    shared->bytes[rank] = bytes;
    if (bytes > emulated_gpu::kMostBytes) emulated_gpu::fail("found %zu bytes to send", bytes);
    if (bytes > 0) std::memcpy(shared->input_of(rank), emulated_gpu::alias_of(from), bytes);
    if (!meet()) return false;
    for (int r = 0; r < size; ++r) {
      if (shared->announced[r] == announced) continue;
      emulated_gpu::fail("rank %d makes %s of %zu, rank %d makes %s of %zu", rank, announced.name,
                         announced.count, r, shared->announced[r].name, shared->announced[r].count);
    }
    for (int r = 0; r < size; ++r) {
      if (shared->bytes[r] > 0) take(r, shared->input_of(r), shared->bytes[r]);
    }
    return meet();
  }
};

namespace {

Announced announce(const char* name, size_t count, ncclDataType_t type, int op, int root) {
  Announced announced{};
  std::snprintf(announced.name, sizeof announced.name, "%s", name);
  announced.count = count;
  announced.type = type;
  announced.op = op;
  announced.root = root;
  return announced;
}

// NCCL takes a rank's part inside of the whole at its own place alone.
void require_in_place(const char* name, const void* part, size_t bytes, const void* whole, int size,
                      int rank) {
  const auto* first = static_cast<const std::byte*>(whole);
  const auto* mine = static_cast<const std::byte*>(part);
  const bool is_apart = mine + bytes <= first || mine >= first + bytes * static_cast<size_t>(size);
  if (is_apart || mine == first + bytes * static_cast<size_t>(rank)) return;
  emulated_gpu::fail("%s of rank %d: its part overlaps the whole at another place", name, rank);
}

at::Tensor elements(const std::byte* at, size_t count, at::ScalarType type) {
  return at::from_blob(const_cast<std::byte*>(at), {static_cast<int64_t>(count)}, type);
}

// `count` elements of every rank's input from `first` on, folded.
void reduce(ncclComm& comm, const Announced& announced, const void* from, size_t bytes, void* to,
            size_t first, size_t count) {
  const at::ScalarType type = emulated_gpu::type_of(static_cast<ncclDataType_t>(announced.type));
  const bool is_float = c10::isFloatingType(type) && type != at::kDouble;
  const size_t element = c10::elementSize(type);
  at::Tensor folded;
  const auto fold = [&](int, const std::byte* theirs, size_t) {
    const at::Tensor part = elements(theirs + first * element, count, type)
                                .to(is_float ? at::kFloat : type, false, /*copy=*/true);
    if (!folded.defined()) {
      folded = part;
    } else if (announced.op == ncclSum) {
      folded += part;
    } else if (announced.op == ncclMax) {
      folded = at::maximum(folded, part);
    } else {
      emulated_gpu::fail("found the reduction %d of NCCL", announced.op);
    }
  };
  if (!comm.exchange(announced, from, bytes, fold)) return;
  elements(static_cast<const std::byte*>(emulated_gpu::alias_of(to)), count, type).copy_(folded);
}

// Sends and receives between ncclGroupStart and ncclGroupEnd: one root sends to everybody, or
// everybody does.
struct Transfer {
  bool sends;
  void* memory;
  size_t bytes;
  int peer;
};
struct Gathered {
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Transfer> transfers;
};
thread_local Gathered gathered;

ncclResult_t gather(bool sends, const void* memory, size_t count, ncclDataType_t type, int peer,
                    ncclComm_t comm, cudaStream_t stream) {
  gathered.comm = comm;
  gathered.stream = stream;
  gathered.transfers.push_back({sends, const_cast<void*>(memory),
                                count * c10::elementSize(emulated_gpu::type_of(type)), peer});
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/emulated-nccl-%08x%08x", random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  if (size > emulated_gpu::kMostRanks) emulated_gpu::fail("found %d ranks", size);
  *comm = new ncclComm{id.internal, rank, size, emulated_gpu::map_memory(id.internal, size)};
  (*comm)->shared->process[rank] = getpid();
  (*comm)->meet();
  if (rank == 0) shm_unlink(id.internal);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->shared->has_left[comm->rank] = true;
  munmap(comm->shared, emulated_gpu::size_of_memory(comm->size));
  delete comm;
  return ncclSuccess;
}
// Another thread may be in a call of the communicator: its memory stays.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->is_aborted = true;
  emulated_gpu::Shared& shared = *comm->shared;
  shared.has_left[comm->rank] = true;
  for (int rank = 0; rank < comm->size; ++rank) {
    while (!shared.has_left[rank] && !emulated_gpu::has_died(shared.process[rank])) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->is_broken ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  Operation operation("all-gather", stream, Reading::kMoves);
  const size_t bytes = count * c10::elementSize(emulated_gpu::type_of(type));
  operation.reads(from, bytes);
  operation.writes(to, bytes * static_cast<size_t>(comm->size));
  require_in_place("all-gather", from, bytes, to, comm->size, comm->rank);
  auto* all = static_cast<std::byte*>(emulated_gpu::alias_of(to));
  comm->exchange(announce("all-gather", count, type, 0, 0), from, bytes,
                 [&](int rank, const std::byte* theirs, size_t size) {
                   std::memcpy(all + static_cast<size_t>(rank) * bytes, theirs, size);
                 });
  return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Operation operation("reduce-scatter", stream, Reading::kMoves);
  const size_t bytes = count * c10::elementSize(emulated_gpu::type_of(type));
  const auto size = static_cast<size_t>(comm->size);
  operation.reads(from, bytes * size);
  operation.writes(to, bytes);
  require_in_place("reduce-scatter", to, bytes, from, comm->size, comm->rank);
  reduce(*comm, announce("reduce-scatter", count, type, op, 0), from, bytes * size, to,
         static_cast<size_t>(comm->rank) * count, count);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Operation operation("all-reduce", stream, Reading::kMoves);
  const size_t bytes = count * c10::elementSize(emulated_gpu::type_of(type));
  operation.reads(from, bytes);
  operation.writes(to, bytes);
  reduce(*comm, announce("all-reduce", count, type, op, 0), from, bytes, to, 0, count);
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  Operation operation("broadcast", stream, Reading::kMoves);
  const size_t bytes = count * c10::elementSize(emulated_gpu::type_of(type));
  if (comm->rank == root) operation.reads(from, bytes);
  operation.writes(to, bytes);
  comm->exchange(announce("broadcast", count, type, 0, root), from, comm->rank == root ? bytes : 0,
                 [&](int, const std::byte* theirs, size_t size) {
                   std::memcpy(emulated_gpu::alias_of(to), theirs, size);
                 });
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return gather(/*sends=*/true, from, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return gather(/*sends=*/false, to, count, type, peer, comm, stream);
}
ncclResult_t ncclGroupStart() {
  gathered = {};
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (gathered.comm == nullptr) return ncclSuccess;
  ncclComm& comm = *gathered.comm;
  Operation operation("sends and receives", gathered.stream, Reading::kMoves);
  std::string sent;  // for every rank of the communicator, in their order
  std::vector<Transfer> received;
  for (const Transfer& transfer : gathered.transfers) {
    if (transfer.sends) {
      operation.reads(transfer.memory, transfer.bytes);
      if (static_cast<size_t>(transfer.peer) * transfer.bytes != sent.size()) {
        emulated_gpu::fail("found sends that are not to all ranks in their order");
      }
      sent.append(static_cast<const char*>(emulated_gpu::alias_of(transfer.memory)),
                  transfer.bytes);
    } else {
      operation.writes(transfer.memory, transfer.bytes);
      received.push_back(transfer);
    }
  }
  if (received.empty()) emulated_gpu::fail("found no receive in a group");
  const bool is_scatter = received.size() == 1;
  const size_t bytes = received[0].bytes;
  comm.exchange(announce(is_scatter ? "scatter" : "all-to-all", bytes, ncclUint8, 0,
                         is_scatter ? received[0].peer : 0),
                sent.data(), sent.size(), [&](int rank, const std::byte* all, size_t) {
                  for (const Transfer& transfer : received) {
                    if (transfer.peer != rank) continue;
                    if (transfer.bytes != bytes) emulated_gpu::fail("found receives of two sizes");
                    std::memcpy(emulated_gpu::alias_of(transfer.memory),
                                all + static_cast<size_t>(comm.rank) * bytes, bytes);
                  }
                });
  gathered = {};
  return ncclSuccess;
}

}  // extern "C"
