// Asks cuBLASLt for algorithms and proves them on probe rows; see the header.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/linear/linear_probe_cuda.h"

namespace fuseblock {
namespace {

constexpr int64_t kProbeRows = 2048;
// Around every tile height, and every range's ends.
constexpr int64_t kProbeSizes[] = {1,  2,   3,   5,   8,   16,  17,  32,   33,
                                   64, 100, 128, 129, 256, 512, 513, 1024, 2048};
constexpr int kCandidates = 8;
// FP32 sums of that many products each, added in order. Products of 16-bit tensors keep one chain:
// their own rounding is far above what it loses; or as many segments as the plan was asked for.
constexpr int64_t kFloatSegment = 128;
// Up to that many rows, whose products are small beside the weight, all segments are multiplied by
// one call; above, one after the other, each onto the sum in y.
constexpr int64_t kRowsAtOnce = 32;

cudaError_t FromCublas(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return cudaSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNotSupported;
    default: {
      const cudaError_t error = cudaGetLastError();
      return error == cudaSuccess ? cudaErrorLaunchFailure : error;
    }
  }
}

cudaDataType_t CublasType(int dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// What one call multiplies of the inner axis: `count` neighbouring segments of `k`, each a product
// of its own.
struct Part {
  int64_t k, count;
};

// The matrices of a call; several products' outputs follow one another.
class Layouts {
 public:
  Layouts(const PinnedProducts& products, const PinnedProduct& product, Part part, int64_t rows,
          int64_t x_stride, int64_t y_stride, int64_t add_stride = 0)
      : lt_(*products.lt) {
    Make(&weight, product.type, part.k, products.n, products.k, part, part.k);
    Make(&x, product.type, part.k, rows, x_stride, part, part.k);
    Make(&y, product.out_type, products.n, rows, y_stride, part, rows * y_stride);
    if (add_stride != 0) Make(&add, product.out_type, products.n, rows, add_stride, part, 0);
  }
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;
  ~Layouts() {
    for (cublasLtMatrixLayout_t layout : {weight, x, y, add}) {
      if (layout != nullptr) lt_.MatrixLayoutDestroy(layout);
    }
  }
  cublasStatus_t status() const { return status_; }

  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr, add = nullptr;

 private:
  void Make(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t length, int64_t count,
            int64_t stride, Part part, int64_t to_next) {
    const auto products = static_cast<int32_t>(part.count);
    const auto ok = [&] { return status_ == CUBLAS_STATUS_SUCCESS; };
    if (ok()) {
      status_ = lt_.MatrixLayoutCreate(layout, type, static_cast<uint64_t>(length),
                                       static_cast<uint64_t>(count), stride);
    }
    if (products == 1) return;
    if (ok()) {
      status_ = lt_.MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &products,
                                             sizeof(products));
    }
    if (ok()) {
      status_ = lt_.MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &to_next, sizeof(to_next));
    }
  }

  const CublasLt& lt_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

// What a product with that many rows begins with; the rest follows in the same way.
Part FirstPart(const PinnedProducts& products, const PinnedProduct& product, int64_t rows) {
  if (product.type != CUDA_R_32F) return {products.k / products.segments, 1};
  if (products.k <= kFloatSegment) return {products.k, 1};
  return {kFloatSegment, rows <= kRowsAtOnce ? products.k / kFloatSegment : 1};
}

// The part of the inner axis from `first` on, onto `onto` times what y holds, or onto `add`.
cublasStatus_t MultiplyPart(const PinnedProducts& products, const PinnedProduct& product,
                            const cublasLtMatmulAlgo_t& algorithm, const ProductOperands& of,
                            Part part, int64_t first, float onto, cudaStream_t stream) {
  const bool adds = of.add != nullptr;
  const Layouts layouts(products, product, part, of.rows, of.x_stride, of.y_stride,
                        adds ? of.add_stride : 0);
  if (layouts.status() != CUBLAS_STATUS_SUCCESS) return layouts.status();
  if (adds) onto = 1.0f;
  const int64_t skip = first * (product.type == CUDA_R_32F ? 4 : 2);
  const float one = 1.0f;
  return products.lt->Matmul(products.handle, products.desc, &one,
                             static_cast<const std::byte*>(of.weight) + skip, layouts.weight,
                             static_cast<const std::byte*>(of.x) + skip, layouts.x, &onto,
                             adds ? of.add : of.y, adds ? layouts.add : layouts.y, of.y, layouts.y,
                             &algorithm, nullptr, 0, stream);
}

// y = the sum of `count` parts [rows, n], in order, as adding each onto y would round it.
__global__ void AddPartsKernel(const float4* parts, int64_t count, int64_t rows, int64_t n4,
                               float4* y, int64_t y_stride4) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * n4) return;
  float4 sum = parts[i];
#pragma unroll 4
  for (int64_t part = 1; part < count; ++part) {
    const float4 more = parts[part * rows * n4 + i];
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  y[i / n4 * y_stride4 + i % n4] = sum;
}

// The segments at once, into scratch of the stream's own, and their sum.
cublasStatus_t MultiplyAtOnce(const PinnedProducts& products, const PinnedProduct& product,
                              const cublasLtMatmulAlgo_t& algorithm, const ProductOperands& of,
                              Part part, cudaStream_t stream) {
  const int64_t done = part.k * part.count, rest = products.k - done;
  const int64_t count = part.count + (rest > 0 ? 1 : 0);
  float* parts = nullptr;
  if (cudaMallocAsync(&parts, static_cast<size_t>(count * of.rows * products.n) * sizeof(float),
                      stream) != cudaSuccess) {
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
  ProductOperands to = of;
  to.y = parts;
  to.y_stride = products.n;
  cublasStatus_t status = MultiplyPart(products, product, algorithm, to, part, 0, 0.0f, stream);
  if (status == CUBLAS_STATUS_SUCCESS && rest > 0) {
    to.y = parts + part.count * of.rows * products.n;
    status = MultiplyPart(products, product, algorithm, to, {rest, 1}, done, 0.0f, stream);
  }
  constexpr int kBlock = 256;
  const int64_t n4 = products.n / 4;
  if (status == CUBLAS_STATUS_SUCCESS &&
      Launch(AddPartsKernel, CeilDiv(of.rows * n4, kBlock), dim3(kBlock), stream,
             reinterpret_cast<const float4*>(parts), count, of.rows, n4, static_cast<float4*>(of.y),
             of.y_stride / 4) != cudaSuccess) {
    status = CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if (cudaFreeAsync(parts, stream) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  return status;
}

cublasStatus_t MultiplyBy(const PinnedProducts& products, const PinnedProduct& product,
                          const cublasLtMatmulAlgo_t& algorithm, const ProductOperands& of,
                          cudaStream_t stream) {
  const Part part = FirstPart(products, product, of.rows);
  if (of.add != nullptr && part.k * part.count != products.k) return CUBLAS_STATUS_INVALID_VALUE;
  if (part.count > 1) return MultiplyAtOnce(products, product, algorithm, of, part, stream);
  for (int64_t k = 0; k < products.k; k += part.k) {
    const Part next{std::min(part.k, products.k - k), 1};
    const cublasStatus_t status =
        MultiplyPart(products, product, algorithm, of, next, k, k == 0 ? 0.0f : 1.0f, stream);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CUBLAS_STATUS_SUCCESS;
}

struct CandidateList {
  cublasLtMatmulAlgo_t algorithms[kCandidates];
  int count = 0;
  const cublasLtMatmulAlgo_t* begin() const { return algorithms; }
  const cublasLtMatmulAlgo_t* end() const { return algorithms + count; }
};

// The library's algorithms for that many rows, best first.
CandidateList Candidates(const PinnedProducts& products, const PinnedProduct& product,
                         int64_t rows) {
  const CublasLt& lt = *products.lt;
  CandidateList found;
  const Layouts layouts(products, product, FirstPart(products, product, rows), rows, products.k,
                        products.n);
  cublasLtMatmulPreference_t preference = nullptr;
  if (layouts.status() != CUBLAS_STATUS_SUCCESS ||
      lt.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
    return found;
  }
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{0});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, uint32_t{16});
  }
  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int count = 0;
  if (lt.MatmulAlgoGetHeuristic(products.handle, products.desc, layouts.weight, layouts.x,
                                layouts.y, layouts.y, preference, kCandidates, results,
                                &count) == CUBLAS_STATUS_SUCCESS) {
    for (int i = 0; i < count; ++i) {
      int32_t split = 1;
      size_t written = 0;
      lt.MatmulAlgoConfigGetAttribute(&results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                      sizeof(split), &written);
      if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize == 0 &&
          split <= 1) {
        found.algorithms[found.count++] = results[i].algo;
      }
    }
  }
  lt.MatmulPreferenceDestroy(preference);
  return found;
}

__device__ uint32_t Mix(uint32_t h) {
  h = (h ^ (h >> 16)) * 0x7feb352du;
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  return h ^ (h >> 16);
}

// Uniform in (-1, 1), a function of the place and the seed.
template <typename T>
__global__ void FillKernel(T* data, int64_t count, uint32_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const uint32_t h = Mix(Mix(static_cast<uint32_t>(i) + seed) + static_cast<uint32_t>(i >> 32));
    data[i] = FromFloat<T>(static_cast<float>(static_cast<int32_t>(h)) * 0x1p-31f);
  }
}

__global__ void CountDifferencesKernel(const uint32_t* a, const uint32_t* b, int64_t count,
                                       int* differences) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    if (a[i] != b[i]) atomicAdd(differences, 1);
  }
}

constexpr int kFillBlock = 256;
constexpr int kFillGrid = 1024;

// Device memory and a stream of the probe; freed with it.
class Scratch {
 public:
  Scratch() { error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (void* p : owned_) cudaFree(p);
    if (stream != nullptr) cudaStreamDestroy(stream);
    cudaGetLastError();
  }
  void* Take(int64_t bytes) {
    void* p = nullptr;
    if (error == cudaSuccess) error = cudaMalloc(&p, static_cast<size_t>(bytes));
    if (p != nullptr) owned_.push_back(p);
    return p;
  }

  cudaStream_t stream = nullptr;
  cudaError_t error;

 private:
  std::vector<void*> owned_;
};

// Probe data of one shape, and the runs that compare rows.
class Probe {
 public:
  Probe(const PinnedProducts& products, int dtype) : products_(products) {
    const int64_t size = dtype == static_cast<int>(DType::kF32) ? 4 : 2;
    row_bytes_ = products.k * size;
    weight_ = scratch_.Take(products.n * row_bytes_);
    x_ = scratch_.Take(kProbeRows * row_bytes_);
    expected_ = scratch_.Take(kProbeRows * products.n * 4);
    part_ = scratch_.Take(kProbeRows * products.n * 4);
    differences_ = static_cast<int*>(scratch_.Take(sizeof(int)));
    if (scratch_.error != cudaSuccess) return;
    scratch_.error = VisitCudaFloat(dtype, [&](auto value) {
      using T = decltype(value);
      const cudaError_t error = Launch(FillKernel<T>, kFillGrid, dim3(kFillBlock), scratch_.stream,
                                       static_cast<T*>(weight_), products.n * products.k, 0x5eedu);
      if (error != cudaSuccess) return error;
      return Launch(FillKernel<T>, kFillGrid, dim3(kFillBlock), scratch_.stream,
                    static_cast<T*>(x_), kProbeRows * products.k, 0xf00du);
    });
  }

  cudaError_t error() const { return scratch_.error; }

  // Pins what `product` may use; leaves it unusable when no algorithm passes.
  void Pin(PinnedProduct& product) {
    out_size_ = product.out_type == CUDA_R_32F ? 4 : 2;
    constexpr int64_t kBaseRows = 96;
    for (const cublasLtMatmulAlgo_t& base : Candidates(products_, product, kBaseRows)) {
      if (!Run(product, base, 0, kProbeRows, expected_)) continue;
      if (!SameRows(product, base, 0, INT64_MAX)) continue;
      int64_t above = 0;
      for (int i = 0; i < kRowRangeCount; ++i) {
        product.algorithms[i] = base;
        for (const auto& algorithm : Candidates(products_, product, kRowRanges[i].typical)) {
          if (!SameRows(product, algorithm, above, kRowRanges[i].rows)) continue;
          product.algorithms[i] = algorithm;
          ++product.pinned_ranges;
          break;
        }
        above = kRowRanges[i].rows;
      }
      product.usable = true;
      return;
    }
  }

 private:
  bool Run(const PinnedProduct& product, const cublasLtMatmulAlgo_t& algorithm, int64_t first_row,
           int64_t rows, void* y) {
    if (scratch_.error != cudaSuccess) return false;
    const ProductOperands of{weight_,     static_cast<std::byte*>(x_) + first_row * row_bytes_,
                             products_.k, rows,
                             y,           products_.n};
    const cublasStatus_t status = MultiplyBy(products_, product, algorithm, of, scratch_.stream);
    if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();
    return status == CUBLAS_STATUS_SUCCESS;
  }

  // Whether that algorithm gives the expected bits for every probe size in (above, up_to], at the
  // start, at the end and in between.
  bool SameRows(const PinnedProduct& product, const cublasLtMatmulAlgo_t& algorithm, int64_t above,
                int64_t up_to) {
    if (scratch_.error != cudaSuccess) return false;
    scratch_.error = cudaMemsetAsync(differences_, 0, sizeof(int), scratch_.stream);
    for (const int64_t rows : kProbeSizes) {
      if (rows <= above || rows > up_to) continue;
      for (const int64_t first : {int64_t{0}, (kProbeRows - rows) / 3, kProbeRows - rows}) {
        const int64_t words = rows * products_.n * out_size_ / 4;
        // NaN bytes: what the product does not write differs.
        if (scratch_.error == cudaSuccess) {
          scratch_.error =
              cudaMemsetAsync(part_, 0xff, static_cast<size_t>(words) * 4, scratch_.stream);
        }
        if (!Run(product, algorithm, first, rows, part_)) return false;
        const auto* expected =
            static_cast<const std::byte*>(expected_) + first * products_.n * out_size_;
        if (scratch_.error == cudaSuccess) {
          scratch_.error = Launch(CountDifferencesKernel, kFillGrid, dim3(kFillBlock),
                                  scratch_.stream, reinterpret_cast<const uint32_t*>(expected),
                                  static_cast<const uint32_t*>(part_), words, differences_);
        }
        if (rows == kProbeRows) break;  // one place only
      }
    }
    int differences = 1;
    if (scratch_.error == cudaSuccess) {
      scratch_.error = cudaMemcpyAsync(&differences, differences_, sizeof(int),
                                       cudaMemcpyDeviceToHost, scratch_.stream);
    }
    if (scratch_.error == cudaSuccess) scratch_.error = cudaStreamSynchronize(scratch_.stream);
    return scratch_.error == cudaSuccess && differences == 0;
  }

  const PinnedProducts& products_;
  Scratch scratch_;
  int64_t row_bytes_ = 0, out_size_ = 0;
  void *weight_, *x_, *expected_, *part_;
  int* differences_;
};

int AlgorithmAttribute(const CublasLt& lt, const cublasLtMatmulAlgo_t& algorithm,
                       cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = -1;
  size_t written = 0;
  lt.MatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return value;
}

cudaError_t MakeProducts(int device, int dtype, int64_t n, int64_t k, int segments,
                         PinnedProducts** out) {
  const int64_t size = dtype == static_cast<int>(DType::kF32) ? 4 : 2;
  if (n == 0 || k == 0 || n * size % 16 != 0 || k / segments * size % 16 != 0) return cudaSuccess;
  auto products = std::make_unique<PinnedProducts>();
  products->n = n;
  products->k = k;
  products->segments = segments;
  products->lt = LoadCublasLt();
  if (products->lt == nullptr) return cudaSuccess;
  const CublasLt& lt = *products->lt;
  products->handle = CublasLtHandle(lt, device);
  if (products->handle == nullptr) return cudaSuccess;
  // Not the TF32 and not an emulated kind of FP32.
  if (lt.MatmulDescCreate(&products->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
      CUBLAS_STATUS_SUCCESS) {
    return cudaSuccess;
  }
  const cublasOperation_t transposed = CUBLAS_OP_T;
  lt.MatmulDescSetAttribute(products->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                            sizeof(transposed));
  products->same.type = products->wide.type = products->same.out_type = CublasType(dtype);
  products->wide.out_type = CUDA_R_32F;

  Probe probe(*products, dtype);
  if (probe.error() == cudaSuccess) probe.Pin(products->wide);
  if (dtype == static_cast<int>(DType::kF32) || segments > 1) {
    products->same = products->wide;
  } else if (probe.error() == cudaSuccess) {
    probe.Pin(products->same);
  }
  if (probe.error() != cudaSuccess || !products->same.usable || !products->wide.usable) {
    lt.MatmulDescDestroy(products->desc);
    return probe.error();
  }
  std::snprintf(products->name, sizeof(products->name), "cublasLt algorithms %d %d %d %d",
                AlgorithmAttribute(lt, products->same.algorithms[0], CUBLASLT_ALGO_CONFIG_TILE_ID),
                AlgorithmAttribute(lt, products->same.algorithms[1], CUBLASLT_ALGO_CONFIG_TILE_ID),
                AlgorithmAttribute(lt, products->same.algorithms[2], CUBLASLT_ALGO_CONFIG_TILE_ID),
                AlgorithmAttribute(lt, products->same.algorithms[3], CUBLASLT_ALGO_CONFIG_TILE_ID));
  *out = products.release();
  return cudaSuccess;
}

}  // namespace

cudaError_t PinProducts(int device, int dtype, int64_t n, int64_t k, int segments,
                        const PinnedProducts** out) {
  struct Known {
    int device, dtype;
    int64_t n, k;
    int segments;
    PinnedProducts* products;  // kept until the process ends, as the list is
  };
  static std::mutex mutex;
  static auto* known = new std::vector<Known>;
  *out = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Known& one : *known) {
    if (one.device == device && one.dtype == dtype && one.n == n && one.k == k &&
        one.segments == segments) {
      *out = one.products;
      return cudaSuccess;
    }
  }
  PinnedProducts* made = nullptr;
  const cudaError_t error = MakeProducts(device, dtype, n, k, segments, &made);
  if (error != cudaSuccess) return error;
  known->push_back({device, dtype, n, k, segments, made});
  *out = made;
  return cudaSuccess;
}

cudaError_t Multiply(const PinnedProducts& products, const PinnedProduct& product,
                     const ProductOperands& operands, cudaStream_t stream) {
  int range = 0;
  while (operands.rows > kRowRanges[range].rows) ++range;
  return FromCublas(MultiplyBy(products, product, product.algorithms[range], operands, stream));
}

}  // namespace fuseblock
