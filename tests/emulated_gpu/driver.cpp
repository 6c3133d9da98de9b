// The calls of CUDA's driver that cuDNN looks for before it compiles a kernel; it makes few of
// them. Declared by hand: cuda.h gives some of these names to later versions.
#include <cstdint>

namespace {

constexpr int kSuccess = 0, kNotSupported = 801;
// Nothing looks behind them.
void* const kSomething = reinterpret_cast<void*>(uintptr_t{16});

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
int cuGetErrorName(int, const char** name) {
  *name = "an error";
  return kSuccess;
}
int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

// A compiled kernel is loaded, to see that it can be, and never launched.
int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = kSomething;
  return kSuccess;
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = kSomething;
  return kSuccess;
}
int cuKernelGetFunction(void** function, void*) {
  *function = kSomething;
  return kSuccess;
}
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return kSuccess;
}
int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }

#define REFUSED(name) \
  int name() { return kNotSupported; }
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLinkAddData)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate)
REFUSED(cuLinkDestroy)
REFUSED(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuStreamGetCtx)
#undef REFUSED

}  // extern "C"
