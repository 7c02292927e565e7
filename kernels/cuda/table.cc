// The one exported symbol of libfuseblock_kernels_cuda.so: the runtime's functions in C form, and a
// line per kernel's launcher.
#include <cuda_runtime.h>

#include <cstring>

#include "kernels/add_residual/add_residual_cuda.h"
#include "kernels/add_rms_norm/add_rms_norm_cuda.h"
#include "kernels/base/cuda_table.h"
#include "kernels/base/row_reduce_cuda.h"
#include "kernels/base/unary_cuda.h"
#include "kernels/causal_softmax/causal_softmax_cuda.h"
#include "kernels/cuda/copy.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/feed_forward/few_tokens_cuda.h"
#include "kernels/geglu/geglu_cuda.h"
#include "kernels/layer_norm/layer_norm_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/softmax_masked/softmax_masked_cuda.h"
#include "kernels/swiglu/swiglu_cuda.h"
#include "kernels/swiglu_clamped/swiglu_clamped_cuda.h"

namespace fuseblock {

FuseblockRowReduce LaunchWarpReduce;
FuseblockRowReduce LaunchBlockReduce;
FuseblockAddResidual LaunchAddResidual;
FuseblockUnary LaunchSilu;
FuseblockUnary LaunchGeluErf;
FuseblockUnary LaunchGeluTanh;
FuseblockSwiGlu LaunchSwiGlu;
FuseblockSwiGluClamped LaunchSwiGluClamped;
FuseblockGeGlu LaunchGeGlu;
FuseblockRmsNorm LaunchRmsNorm;
FuseblockAddRmsNorm LaunchAddRmsNorm;
FuseblockLayerNorm LaunchLayerNorm;
FuseblockUnary LaunchSoftmax;
FuseblockSoftmaxMasked LaunchSoftmaxMasked;
FuseblockCausalSoftmax LaunchCausalSoftmax;
FuseblockEmbedding LaunchEmbedding;
FuseblockRope LaunchRope;
FuseblockLinearPlan MakeLinearPlan;
FuseblockLinearPlanFree FreeLinearPlan;
FuseblockLinear RunLinear;
FuseblockFewTokensPack PackFewTokens;
FuseblockFewTokensRun RunFewTokens;

namespace {

template <typename F>
FuseblockCudaEntry Entry(const char* name, F* function) {
  return {name, reinterpret_cast<void (*)(void)>(function)};
}

const FuseblockCudaEntry kEntries[] = {
    Entry("warp_reduce", LaunchWarpReduce),
    Entry("block_reduce", LaunchBlockReduce),
    Entry("add_residual", LaunchAddResidual),
    Entry("silu", LaunchSilu),
    Entry("gelu_erf", LaunchGeluErf),
    Entry("gelu_tanh", LaunchGeluTanh),
    Entry("swiglu", LaunchSwiGlu),
    Entry("swiglu_clamped", LaunchSwiGluClamped),
    Entry("geglu", LaunchGeGlu),
    Entry("rms_norm", LaunchRmsNorm),
    Entry("add_rms_norm", LaunchAddRmsNorm),
    Entry("layer_norm", LaunchLayerNorm),
    Entry("softmax", LaunchSoftmax),
    Entry("softmax_masked", LaunchSoftmaxMasked),
    Entry("causal_softmax", LaunchCausalSoftmax),
    Entry("embedding", LaunchEmbedding),
    Entry("rope", LaunchRope),
    Entry("linear_plan", MakeLinearPlan),
    Entry("linear_plan_free", FreeLinearPlan),
    Entry("linear", RunLinear),
#if FUSEBLOCK_SM90A_CODE
    Entry("few_tokens_pack", PackFewTokens),
    Entry("few_tokens", RunFewTokens),
#endif
};

// Passes an error on and takes it off the runtime's books, where a later caller would find it.
int Checked(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Runs f() with `device` current.
template <typename F>
int On(int device, F&& f) {
  const cudaError_t error = cudaSetDevice(device);
  return Checked(error == cudaSuccess ? f() : error);
}

int DeviceCount(int* count) {
  *count = 0;
  return Checked(cudaGetDeviceCount(count));
}

int DeviceProperties(int device, FuseblockCudaDevice* out) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
      error != cudaSuccess) {
    return Checked(error);
  }
  static_assert(sizeof(out->name) == sizeof(properties.name));
  std::memcpy(out->name, properties.name, sizeof(out->name));
  out->major = properties.major;
  out->minor = properties.minor;
  out->multiprocessors = properties.multiProcessorCount;
  out->total_bytes = properties.totalGlobalMem;
  out->l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  return cudaSuccess;
}

int SetDevice(int device) { return Checked(cudaSetDevice(device)); }

int MemoryInfo(int device, size_t* free_bytes, size_t* total_bytes) {
  return On(device, [&] { return cudaMemGetInfo(free_bytes, total_bytes); });
}

int Malloc(int device, size_t bytes, void** out) {
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  return On(device, [&] { return cudaMalloc(out, bytes); });
}

int Free(int device, void* p) {
  return On(device, [&] { return cudaFree(p); });
}

int HostMalloc(size_t bytes, void** out) {
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  return Checked(cudaHostAlloc(out, bytes, cudaHostAllocPortable));
}

int HostFree(void* p) { return Checked(cudaFreeHost(p)); }

cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t AsEvent(void* event) { return static_cast<cudaEvent_t>(event); }

int StreamCreate(int device, void** stream) {
  return On(device, [&] {
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream),
                                     cudaStreamNonBlocking);
  });
}
int StreamDestroy(int device, void* stream) {
  return On(device, [&] { return cudaStreamDestroy(AsStream(stream)); });
}
int StreamSynchronize(int device, void* stream) {
  return On(device, [&] { return cudaStreamSynchronize(AsStream(stream)); });
}
int StreamQuery(int device, void* stream) {
  return On(device, [&] { return cudaStreamQuery(AsStream(stream)); });
}

int EventCreate(int device, void** event) {
  return On(device, [&] { return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)); });
}
int EventDestroy(int device, void* event) {
  return On(device, [&] { return cudaEventDestroy(AsEvent(event)); });
}
int EventRecord(int device, void* event, void* stream) {
  return On(device, [&] { return cudaEventRecord(AsEvent(event), AsStream(stream)); });
}
int EventSynchronize(int device, void* event) {
  return On(device, [&] { return cudaEventSynchronize(AsEvent(event)); });
}
int EventElapsedMs(void* begin, void* end, float* ms) {
  return Checked(cudaEventElapsedTime(ms, AsEvent(begin), AsEvent(end)));
}

int CopyAsync(int device, void* destination, const void* source, size_t bytes, void* stream) {
  if (bytes == 0) return cudaSuccess;
  return On(device, [&] {
    return cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, AsStream(stream));
  });
}
int CopyByKernel(int device, void* destination, const void* source, size_t bytes, uint64_t* stamps,
                 void* stream) {
  return On(device, [&] {
    return static_cast<cudaError_t>(LaunchCopy(destination, source, bytes, stamps, stream));
  });
}
int MemsetAsync(int device, void* destination, int value, size_t bytes, void* stream) {
  if (bytes == 0) return cudaSuccess;
  return On(device, [&] { return cudaMemsetAsync(destination, value, bytes, AsStream(stream)); });
}
int LaunchHostFunction(int device, void* stream, void (*fn)(void*), void* arg) {
  return On(device, [&] { return cudaLaunchHostFunc(AsStream(stream), fn, arg); });
}

// Other threads may allocate while this one captures; this one may not.
int CaptureBegin(int device, void* stream) {
  return On(device, [&] {
    return cudaStreamBeginCapture(AsStream(stream), cudaStreamCaptureModeThreadLocal);
  });
}

// Uploaded at once, so that the first launch costs what later ones do.
int CaptureEnd(int device, void* stream, void** out, size_t* nodes) {
  *out = nullptr;
  *nodes = 0;
  return On(device, [&] {
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamEndCapture(AsStream(stream), &graph);
    if (graph == nullptr) return error == cudaSuccess ? cudaErrorStreamCaptureInvalidated : error;
    if (error == cudaSuccess) error = cudaGraphGetNodes(graph, nullptr, nodes);
    cudaGraphExec_t executable = nullptr;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    if (error != cudaSuccess) return error;
    error = cudaGraphUpload(executable, AsStream(stream));
    if (error == cudaSuccess) error = cudaStreamSynchronize(AsStream(stream));
    if (error == cudaSuccess) {
      *out = executable;
    } else {
      cudaGraphExecDestroy(executable);
    }
    return error;
  });
}

cudaGraphExec_t AsGraph(void* graph) { return static_cast<cudaGraphExec_t>(graph); }

int GraphLaunch(int device, void* graph, void* stream) {
  return On(device, [&] { return cudaGraphLaunch(AsGraph(graph), AsStream(stream)); });
}
int GraphDestroy(int device, void* graph) {
  return On(device, [&] { return cudaGraphExecDestroy(AsGraph(graph)); });
}

int DriverVersion(int* version) { return Checked(cudaDriverGetVersion(version)); }
int RuntimeVersion(int* version) { return Checked(cudaRuntimeGetVersion(version)); }
const char* ErrorName(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }
const char* ErrorString(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int ErrorIsSticky(int error) {
  switch (static_cast<cudaError_t>(error)) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return 1;
    default:
      return 0;
  }
}

const FuseblockCudaTable kTable = {
    FUSEBLOCK_CUDA_TABLE_VERSION,
    {DeviceCount,
     DeviceProperties,
     MemoryInfo,
     SetDevice,
     Malloc,
     Free,
     HostMalloc,
     HostFree,
     StreamCreate,
     StreamDestroy,
     StreamSynchronize,
     StreamQuery,
     EventCreate,
     EventDestroy,
     EventRecord,
     EventSynchronize,
     EventElapsedMs,
     CopyAsync,
     CopyByKernel,
     MemsetAsync,
     LaunchHostFunction,
     CaptureBegin,
     CaptureEnd,
     GraphLaunch,
     GraphDestroy,
     DriverVersion,
     RuntimeVersion,
     ErrorName,
     ErrorString,
     ErrorIsSticky},
    kEntries,
    static_cast<int>(sizeof(kEntries) / sizeof(kEntries[0])),
};

}  // namespace
}  // namespace fuseblock

extern "C" __attribute__((visibility("default"))) const FuseblockCudaTable* fuseblock_cuda_table(
    void) {
  return &fuseblock::kTable;
}
