// The causal mask's shape, for the host and the device.
#pragma once

#include <cstdint>

namespace fuseblock {

// How many of its `keys` query `query` of `queries` keeps: those up to query + (keys - queries).
constexpr int64_t CausalKept(int64_t query, int64_t queries, int64_t keys) {
  const int64_t kept = query + 1 + keys - queries;
  return kept < 0 ? 0 : kept > keys ? keys : kept;
}

// An order of the queries in which any few in a row have about the same keys: 0, Q - 1, 1, Q - 2,
// ..
constexpr int64_t CausalQueryInTurn(int64_t turn, int64_t queries) {
  return turn % 2 == 0 ? turn / 2 : queries - 1 - turn / 2;
}

}  // namespace fuseblock
