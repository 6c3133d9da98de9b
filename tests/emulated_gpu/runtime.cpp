// The calls of CUDA's runtime that libtorch and Strata make, for machines without a GPU; they take
// the place of libcudart's. As many devices as EMULATED_GPUS says (1; 0: the driver is too old), of
// which CUDA_VISIBLE_DEVICES hides some, of EMULATED_GPU_BYTES each; they are A100s, or H100s with
// EMULATED_GPU_CAPABILITY=9.0, and NVIDIA's own kernels do not run on them. A process may open one.
#include <cuda.h>
#include <cuda_runtime.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "broken_wait.h"
#include "devices.h"
#include "launches.h"
#include "stream_order.h"

#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo
#undef cudaGetDriverEntryPointByVersion

namespace emulated_gpu {
namespace {

struct Model {
  int major, minor, multiprocessors, shared_kilobytes, cache_megabytes;
};
const Model& model() {
  static const Model wanted = [] {
    const Model a100{8, 0, 108, 163, 40}, h100{9, 0, 132, 227, 50};
    const char* capability = std::getenv("EMULATED_GPU_CAPABILITY");
    if (capability == nullptr || std::strcmp(capability, "8.0") == 0) return a100;
    if (std::strcmp(capability, "9.0") != 0) {
      fail("EMULATED_GPU_CAPABILITY: found %s, expected 8.0 or 9.0", capability);
    }
    return h100;
  }();
  return wanted;
}
// As often may the host ask for the end of an event before it gets it: work is never at an end at
// once.
constexpr int kQueriesUntilEnd = 64;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t with_error(cudaError_t error) { return last_error = error; }

void open_current_device() { open_device(current_device); }

std::atomic<const std::atomic<bool>*> end_of_broken{nullptr};

// EMULATED_GPU_FORGETS=n: the n-th wait for an event, by a stream or by the host, is left out, to
// see that it is missed.
bool is_forgotten() {
  static const char* wanted = std::getenv("EMULATED_GPU_FORGETS");
  static std::atomic<int> waits{0};
  return wanted != nullptr && ++waits == std::atoi(wanted);
}

struct Event {
  Clocks at;
  int queries = 0;
};
Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

void copy(const char* name, void* to, const void* from, size_t bytes, cudaStream_t stream,
          bool host_waits_for_it) {
  {
    Operation operation(name, stream, Reading::kMoves);
    operation.reads(from, bytes);
    operation.writes(to, bytes);
    std::memmove(alias_of(to), alias_of(from), bytes);
  }
  // Memory of the host that is not locked is written before the call returns.
  if (host_waits_for_it || block_of(to) == nullptr) {
    wait_behind_broken();
    host_waits_for_stream(stream);
  }
}

void fill(void* to, int value, size_t bytes, cudaStream_t stream) {
  Operation operation("a fill", stream);
  operation.writes(to, bytes);
  std::memset(alias_of(to), value, bytes);
}

cudaError_t refuse_kernel(const void* kernel) {
  if (LaunchesLeftOut::leave_out()) return cudaSuccess;
  std::fprintf(stderr, "emulated GPU: a kernel of a library was launched (%p)\n", kernel);
  if (std::getenv("EMULATED_GPU_ABORT") != nullptr) fail("where it was launched:");
  return with_error(cudaErrorLaunchFailure);
}

CUresult primary_context_state(CUdevice device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = opened_device() == device ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult refuse_driver_call() { return CUDA_ERROR_NOT_SUPPORTED; }

// As the runtime does it; what a wait behind a collective that never ends would hold is free.
void wait_for_stream(cudaStream_t stream) {
  wait_behind_broken();
  host_waits_for_stream(stream);
}
void wait_for_all() {
  wait_behind_broken();
  host_waits_for_all();
}

}  // namespace

void break_waits(const std::atomic<bool>& is_over) { end_of_broken = &is_over; }
void wait_behind_broken() {
  const std::atomic<bool>* is_over = end_of_broken;
  while (is_over != nullptr && !*is_over) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace emulated_gpu

using namespace emulated_gpu;

extern "C" {

// Devices.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  if (is_driver_old()) return with_error(cudaErrorInsufficientDriver);
  return *count > 0 ? cudaSuccess : with_error(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return with_error(cudaErrorInvalidDevice);
  current_device = device;
  open_current_device();
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  constexpr int kOld = 12080;
  *version = is_driver_old() ? kOld : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return with_error(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "emulated GPU");
  properties->major = model().major;
  properties->minor = model().minor;
  properties->totalGlobalMem = total_device_bytes();
  properties->multiProcessorCount = model().multiprocessors;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->warpSize = 32;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = static_cast<size_t>(model().shared_kilobytes) << 10;
  properties->regsPerBlock = 65536;
  properties->l2CacheSize = model().cache_megabytes << 20;
  for (int& size : properties->maxThreadsDim) size = 1024;
  properties->maxGridSize[0] = 0x7fffffff;
  const int number = devices()[static_cast<size_t>(device)];
  std::memset(properties->uuid.bytes, number + 1, sizeof properties->uuid.bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? model().major
           : attribute == cudaDevAttrComputeCapabilityMinor ? model().minor
           : attribute == cudaDevAttrMultiProcessorCount    ? model().multiprocessors
                                                            : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -3;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  open_current_device();
  wait_for_all();
  return cudaSuccess;
}

// Memory. Giving it back waits for the device, as CUDA does.
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  open_current_device();
  *memory = take(bytes, Kind::kDevice);
  return *memory != nullptr ? cudaSuccess : with_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  open_current_device();
  wait_for_all();
  if (memory != nullptr) give_back(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  open_current_device();
  *memory = take(bytes, Kind::kLocked);
  return *memory != nullptr ? cudaSuccess : with_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = total_device_bytes();
  *free = *total - used_device_bytes();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  copy("a copy", to, from, bytes, stream, /*host_waits_for_it=*/false);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  copy("a copy", to, from, bytes, nullptr, /*host_waits_for_it=*/true);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  fill(to, value, bytes, stream);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  fill(to, value, bytes, nullptr);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeUnregistered;
  const std::lock_guard lock(machine_mutex());
  const Block* block = block_of(p);
  if (block == nullptr) return cudaSuccess;
  const bool on_device = block->kind == Kind::kDevice;
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = current_device;
  attributes->devicePointer = const_cast<void*>(p);
  attributes->hostPointer = on_device ? nullptr : const_cast<void*>(p);
  return cudaSuccess;
}

// Streams and events.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (flags != cudaStreamNonBlocking) fail("found a stream that waits for the default stream");
  open_current_device();
  static uintptr_t latest = 0x1000;
  const std::lock_guard lock(machine_mutex());
  *stream = reinterpret_cast<cudaStream_t>(latest += 16);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  forget_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  wait_for_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return host_knows(enqueued_on(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!is_forgotten()) stream_waits(stream, event_of(event)->at);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  open_current_device();
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *event_of(event) = {enqueued_on(stream)};
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  wait_behind_broken();
  if (!is_forgotten()) host_waits(event_of(event)->at);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  // Work runs while the host enqueues it: for another thread it is under way.
  const std::unique_lock lock(machine_mutex(), std::try_to_lock);
  if (!lock) return cudaErrorNotReady;
  if (host_knows(event_of(event)->at)) return cudaSuccess;
  if (++event_of(event)->queries < kQueriesUntilEnd) return cudaErrorNotReady;
  host_waits(event_of(event)->at);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

// Graphs: nothing is captured.
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// Errors.
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

// Kernels of libraries, and the driver.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->binaryVersion = 10 * model().major + model().minor;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel(kernel);
}
// What nvcc 13 makes of <<<>>>.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return refuse_kernel(kernel);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = std::strcmp(name, "cuDevicePrimaryCtxGetState") == 0
                  ? reinterpret_cast<void*>(primary_context_state)
                  : reinterpret_cast<void*>(refuse_driver_call);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// In the driver's own library.
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  return primary_context_state(device, flags, is_active);
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(16);
  return CUDA_SUCCESS;
}

}  // extern "C"
