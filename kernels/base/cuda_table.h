// The C interface between the host code and libfuseblock_kernels_cuda.so. That library is loaded at
// first use when a driver is there, so that one build serves machines with and without a GPU.
// Every function returns a cudaError_t as int (0 is success) unless it says otherwise.
#ifndef FUSEBLOCK_KERNELS_BASE_CUDA_TABLE_H_
#define FUSEBLOCK_KERNELS_BASE_CUDA_TABLE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of a struct below or of a kernel's argument struct: a library built from
// another tree is refused, never guessed at.
#define FUSEBLOCK_CUDA_TABLE_VERSION 7

typedef struct FuseblockCudaDevice {
  char name[256];
  int major, minor;  // compute capability
  int multiprocessors;
  size_t total_bytes;
  size_t l2_bytes;
} FuseblockCudaDevice;

typedef struct FuseblockCudaRuntime {
  int (*device_count)(int* count);
  int (*device_properties)(int device, FuseblockCudaDevice* properties);
  int (*memory_info)(int device, size_t* free_bytes, size_t* total_bytes);
  // Makes the device the calling thread's current one, on which the kernels' launchers start.
  // Allowed while a stream is captured.
  int (*set_device)(int device);
  // Device memory, 256-byte aligned. malloc(0) gives NULL.
  int (*malloc)(int device, size_t bytes, void** out);
  int (*free)(int device, void* p);
  // Pinned host memory, zeros, that every device can copy from and to, and kernels read and write.
  int (*host_malloc)(size_t bytes, void** out);
  int (*host_free)(void* p);
  int (*stream_create)(int device, void** stream);
  int (*stream_destroy)(int device, void* stream);
  int (*stream_synchronize)(int device, void* stream);
  // 0: all done; cudaErrorNotReady: still running; else the error.
  int (*stream_query)(int device, void* stream);
  int (*event_create)(int device, void** event);
  int (*event_destroy)(int device, void* event);
  int (*event_record)(int device, void* event, void* stream);
  int (*event_synchronize)(int device, void* event);
  int (*event_elapsed_ms)(void* begin, void* end, float* ms);
  // Any direction, by address. Asynchronous when the host side is pinned.
  int (*copy_async)(int device, void* destination, const void* source, size_t bytes, void* stream);
  // The same by a kernel, which reads or writes pinned memory itself: some KiB are there before a
  // copy engine has begun. Pointers and bytes are multiples of 16. stamps: pinned, two numbers,
  // when it began and when what it wrote could be seen everywhere, in ns of the device's clock.
  int (*copy_by_kernel)(int device, void* destination, const void* source, size_t bytes,
                        uint64_t* stamps, void* stream);
  int (*memset_async)(int device, void* destination, int value, size_t bytes, void* stream);
  // Calls fn(arg) on a driver thread once the stream has come there; fn must not call CUDA.
  int (*launch_host_function)(int device, void* stream, void (*fn)(void*), void* arg);
  // What the stream is given between begin and end is not run but recorded, as a graph. The calling
  // thread must end what it began, also after an error in between, and allocates nothing meanwhile.
  // *graph is ready to be launched, its memory on the device; null with an error. *nodes: how many
  // launches and copies it makes one.
  int (*capture_begin)(int device, void* stream);
  int (*capture_end)(int device, void* stream, void** graph, size_t* nodes);
  // On any stream of the device; one launch at a time.
  int (*graph_launch)(int device, void* graph, void* stream);
  int (*graph_destroy)(int device, void* graph);
  int (*driver_version)(int* version);
  int (*runtime_version)(int* version);
  const char* (*error_name)(int error);    // "cudaErrorIllegalAddress"
  const char* (*error_string)(int error);  // for people
  // 1 if the error leaves the process's context unusable (illegal address, assert, ECC, ...).
  int (*error_is_sticky)(int error);
} FuseblockCudaRuntime;

// One kernel's launcher; `entry` is cast to the type that <kernel>/<kernel>_cuda.h declares.
typedef struct FuseblockCudaEntry {
  const char* name;
  void (*entry)(void);
} FuseblockCudaEntry;

typedef struct FuseblockCudaTable {
  int version;  // FUSEBLOCK_CUDA_TABLE_VERSION
  FuseblockCudaRuntime runtime;
  const FuseblockCudaEntry* entries;
  int entry_count;
} FuseblockCudaTable;

// The library's only exported symbol.
typedef const FuseblockCudaTable* (*FuseblockCudaTableFunction)(void);
#define FUSEBLOCK_CUDA_TABLE_SYMBOL "fuseblock_cuda_table"

// A row operand of a launcher: device memory, `stride` elements between rows.
typedef struct FuseblockCudaRows {
  void* data;
  int dtype;  // fuseblock::DType
  int64_t rows, cols, stride;
} FuseblockCudaRows;

#ifdef __cplusplus
}
#endif

#endif  // FUSEBLOCK_KERNELS_BASE_CUDA_TABLE_H_
