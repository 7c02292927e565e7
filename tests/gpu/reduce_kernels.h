// The reductions of kernels/base/reduce.cuh as calls on host arrays.
#pragma once

#include <vector>

namespace fuseblock::testing {

enum class ReduceOp { kSum, kMax };

// Each of the first `lanes` lanes of one warp holds values[lane]; what each of them got.
std::vector<float> RunWarpReduce(ReduceOp op, const std::vector<float>& values);

// A block of values.size() threads reduces values, then, at once and with the same scratch, its
// square; both results as each thread got them: first[0], second[0], first[1], ...
std::vector<float> RunBlockReduceTwice(ReduceOp op, const std::vector<float>& values);

}  // namespace fuseblock::testing
