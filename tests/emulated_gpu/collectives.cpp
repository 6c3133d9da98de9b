// NCCL's calls between processes of one machine, each with an emulated GPU: through files in memory
// that all ranks of a communicator map. A call is an operation of its stream and returns when all
// ranks have made it; ranks that make different calls end with a message. Sums are taken in fp32 in
// the order of the ranks.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "stream_order.h"

namespace emulated_gpu {
namespace {

constexpr int kMostRanks = 64;
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
  std::atomic<int> joined;
  std::atomic<int> arrived;
  std::atomic<uint32_t> round;
  Announced announced[kMostRanks];
  size_t bytes[kMostRanks];
};

void* map_file(const std::string& name, size_t bytes) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    fail("could not open %s of %zu bytes", name.c_str(), bytes);
  }
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) fail("could not map %s of %zu bytes", name.c_str(), bytes);
  return at;
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

  // Until all ranks have come.
  void meet() {
    const uint32_t round = shared->round.load();
    if (shared->arrived.fetch_add(1) + 1 == size) {
      shared->arrived.store(0);
      shared->round.store(round + 1);
      return;
    }
    const auto since = std::chrono::steady_clock::now();
    while (shared->round.load() == round) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (std::chrono::steady_clock::now() - since > emulated_gpu::kPatience) {
        emulated_gpu::fail("rank %d waits for the others of %s", rank, name.c_str());
      }
    }
  }

  std::string file_of(int of_rank) const { return name + "-" + std::to_string(of_rank); }

  // Shows `bytes` of every rank to `take(rank, its bytes, their number)`.
  template <typename Take>
  void exchange(const Announced& announced, const void* from, size_t bytes, const Take& take) {
    shared->announced[rank] = announced;
    shared->bytes[rank] = bytes;
    if (bytes > 0) {
      void* mine = emulated_gpu::map_file(file_of(rank), bytes);
      std::memcpy(mine, emulated_gpu::alias_of(from), bytes);
      munmap(mine, bytes);
    }
    meet();
    for (int r = 0; r < size; ++r) {
      if (shared->announced[r] == announced) continue;
      emulated_gpu::fail("rank %d makes %s of %zu, rank %d makes %s of %zu", rank, announced.name,
                         announced.count, r, shared->announced[r].name, shared->announced[r].count);
    }
    for (int r = 0; r < size; ++r) {
      const size_t theirs = shared->bytes[r];
      if (theirs == 0) continue;
      void* at = emulated_gpu::map_file(file_of(r), theirs);
      take(r, static_cast<const std::byte*>(at), theirs);
      munmap(at, theirs);
    }
    meet();
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
  comm.exchange(announced, from, bytes, [&](int, const std::byte* theirs, size_t) {
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
  });
  elements(static_cast<const std::byte*>(emulated_gpu::alias_of(to)), count, type).copy_(folded);
}

// Sends and receives between ncclGroupStart and ncclGroupEnd: one root sends to everybody.
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
  void* shared = emulated_gpu::map_file(id.internal, sizeof(emulated_gpu::Shared));
  *comm = new ncclComm{id.internal, rank, size, static_cast<emulated_gpu::Shared*>(shared)};
  (*comm)->meet();
  if (rank == 0) shm_unlink(id.internal);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  shm_unlink(comm->file_of(comm->rank).c_str());
  munmap(comm->shared, sizeof(emulated_gpu::Shared));
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  Operation operation("all-gather", stream, Reading::kMoves);
  const size_t bytes = count * c10::elementSize(emulated_gpu::type_of(type));
  operation.reads(from, bytes);
  operation.writes(to, bytes * static_cast<size_t>(comm->size));
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
  const Transfer* received = nullptr;
  for (const Transfer& transfer : gathered.transfers) {
    if (transfer.sends) {
      operation.reads(transfer.memory, transfer.bytes);
      if (static_cast<size_t>(transfer.peer) * transfer.bytes != sent.size()) {
        emulated_gpu::fail("found sends that are no scatter");
      }
      sent.append(static_cast<const char*>(emulated_gpu::alias_of(transfer.memory)),
                  transfer.bytes);
    } else {
      operation.writes(transfer.memory, transfer.bytes);
      received = &transfer;
    }
  }
  if (received == nullptr) emulated_gpu::fail("found no receive in a group");
  comm.exchange(announce("scatter", received->bytes, ncclUint8, 0, received->peer), sent.data(),
                sent.size(), [&](int, const std::byte* all, size_t) {
                  std::memcpy(emulated_gpu::alias_of(received->memory),
                              all + static_cast<size_t>(comm.rank) * received->bytes,
                              received->bytes);
                });
  gathered = {};
  return ncclSuccess;
}

}  // extern "C"
