// Oracle: CUDA's programming guide on what orders work: a stream's own order, events between
// streams, waiting hosts. Every order that is missing must be found, and none that is there.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <vector>

#include "stream_order.h"

namespace emulated_gpu {
namespace {

constexpr size_t kBytes = 4096;

struct EmulatedGpu : testing::Test {
  EmulatedGpu() {
    cudaMalloc(&on_device, kBytes);
    cudaMalloc(&other, kBytes);
    cudaHostAlloc(&locked, kBytes, cudaHostAllocDefault);
    std::memset(locked, 1, kBytes);
    for (cudaStream_t* stream : {&first, &second}) {
      cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0);
    }
    cudaEventCreate(&event);
  }
  ~EmulatedGpu() override {
    for (void* memory : {on_device, other, locked}) cudaFree(memory);
    cudaEventDestroy(event);
    for (cudaStream_t stream : {first, second}) cudaStreamDestroy(stream);
  }
  void copy(void* to, const void* from, cudaStream_t stream) {
    cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream);
  }
  char host_reads() const { return *static_cast<volatile char*>(locked); }
  void host_writes() { *static_cast<volatile char*>(locked) = 2; }

  void *on_device = nullptr, *other = nullptr, *locked = nullptr;
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t event = nullptr;
};

TEST_F(EmulatedGpu, AStreamIsInOrder) {
  copy(on_device, locked, first);
  copy(other, on_device, first);
  copy(locked, other, first);
  cudaStreamSynchronize(first);
  EXPECT_EQ(host_reads(), 1);
}

TEST_F(EmulatedGpu, AnEventOrdersStreams) {
  copy(on_device, locked, first);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  copy(other, on_device, second);
}

TEST_F(EmulatedGpu, ReadersNeedNoOrder) {
  cudaMemset(on_device, 0, kBytes);
  cudaDeviceSynchronize();
  void* third = nullptr;
  cudaMalloc(&third, kBytes);
  copy(other, on_device, first);
  copy(third, on_device, second);
  cudaFree(third);
}

TEST_F(EmulatedGpu, AWaitingHostOrdersStreams) {
  copy(on_device, locked, first);
  cudaStreamSynchronize(first);
  copy(other, on_device, second);
}

TEST_F(EmulatedGpu, OrderIsHandedOn) {
  copy(on_device, locked, first);
  cudaEventRecord(event, first);
  cudaStream_t third = nullptr;
  cudaStreamCreateWithPriority(&third, cudaStreamNonBlocking, 0);
  cudaStreamWaitEvent(third, event, 0);
  cudaEventRecord(event, third);
  cudaStreamWaitEvent(second, event, 0);
  copy(other, on_device, second);
  cudaStreamDestroy(third);
}

using EmulatedGpuDeathTest = EmulatedGpu;

TEST_F(EmulatedGpuDeathTest, ReadsBehindAWrite) {
  copy(on_device, locked, first);
  EXPECT_DEATH(copy(other, on_device, second),
               "a copy \\(stream .*\\) reads .* writes, and nothing");
}

TEST_F(EmulatedGpuDeathTest, WritesBehindARead) {
  cudaMemset(on_device, 0, kBytes);
  cudaDeviceSynchronize();
  copy(other, on_device, first);
  EXPECT_DEATH(cudaMemsetAsync(on_device, 1, kBytes, second),
               "a fill .* writes .* reads, and nothing");
}

TEST_F(EmulatedGpuDeathTest, AnEventOfBeforeOrdersNothing) {
  cudaEventRecord(event, first);
  copy(on_device, locked, first);
  cudaStreamWaitEvent(second, event, 0);
  EXPECT_DEATH(copy(other, on_device, second), "nothing orders them");
}

// The host waits for the copy before, and not for this one.
TEST_F(EmulatedGpuDeathTest, TheHostReadsTooEarly) {
  copy(on_device, locked, first);
  cudaStreamSynchronize(first);
  copy(locked, on_device, first);
  EXPECT_DEATH(host_reads(), "the host reads locked memory .* still writes");
}

TEST_F(EmulatedGpuDeathTest, TheHostWritesWhatIsRead) {
  copy(on_device, locked, first);
  EXPECT_EQ(host_reads(), 1);
  EXPECT_DEATH(host_writes(), "the host writes locked memory .* still reads");
}

TEST_F(EmulatedGpuDeathTest, TheHostTouchesTheDevice) {
  EXPECT_DEATH(*static_cast<volatile char*>(on_device) = 1, "the host writes device memory");
}

TEST_F(EmulatedGpuDeathTest, BehindABlock) {
  EXPECT_DEATH(cudaMemsetAsync(on_device, 0, kBytes + 1, first), "4097 bytes .* block of 4096");
}

TEST_F(EmulatedGpuDeathTest, MemoryThatWasGivenBack) {
  void* gone = nullptr;
  cudaMalloc(&gone, kBytes);
  cudaFree(gone);
  EXPECT_DEATH(*static_cast<volatile char*>(gone) = 1, "which is no block");
}

TEST(EmulatedNccl, OneRankKeepsItsOwn) {
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&comm, 1, id, 0);
  void* memory = nullptr;
  cudaMalloc(&memory, 16);
  const std::vector<float> given{1, 2, 3, 4};
  cudaMemcpy(memory, given.data(), 16, cudaMemcpyDefault);
  ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, nullptr);
  std::vector<float> found(4);
  cudaMemcpy(found.data(), memory, 16, cudaMemcpyDefault);
  EXPECT_EQ(found, given);
  cudaFree(memory);
  ncclCommDestroy(comm);
}

}  // namespace
}  // namespace emulated_gpu
