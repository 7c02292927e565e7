// cuBLASLt, loaded when the first product is planned: half a gigabyte that the row kernels need not
// wait for, and that a machine may have in its toolkit, in a Python wheel, or not at all.
#pragma once

#include <cublasLt.h>

namespace fuseblock {

// The functions used, under the names that cublasLt.h gives them.
struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) MatmulAlgoConfigGetAttribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;
};

// Null when no folder has libcublasLt.so.13. Looked for in $FUSEBLOCK_CUBLASLT (a file), where the
// loader looks (already loaded by the process, LD_LIBRARY_PATH, this library's run path, the
// system's folders), in $CUDA_HOME and /usr/local/cuda, and in the wheels of the Pythons in the
// usual places. Thread-safe; the first call loads.
const CublasLt* LoadCublasLt();

// A handle of `device`, made once and kept; null when it cannot be made. Thread-safe, and so are
// products on the handle from any number of streams.
cublasLtHandle_t CublasLtHandle(const CublasLt& lt, int device);

}  // namespace fuseblock
