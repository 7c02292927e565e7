// Two statements for functions that return absl::Status or absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function when `expression`, an absl::Status, is not OK.
#define FUSEBLOCK_RETURN_IF_ERROR(expression)            \
  do {                                                   \
    absl::Status fuseblock_status = (expression);        \
    if (!fuseblock_status.ok()) return fuseblock_status; \
  } while (false)

// Assigns the value of `expression`, an absl::StatusOr, to `target` (a variable or a declaration),
// or returns its status from the calling function.
#define FUSEBLOCK_ASSIGN_OR_RETURN(target, expression) \
  FUSEBLOCK_ASSIGN_OR_RETURN_NAMED(FUSEBLOCK_JOIN(fuseblock_result_, __LINE__), target, expression)

#define FUSEBLOCK_ASSIGN_OR_RETURN_NAMED(result, target, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  target = *std::move(result)

#define FUSEBLOCK_JOIN(a, b) FUSEBLOCK_JOIN_EXPANDED(a, b)
#define FUSEBLOCK_JOIN_EXPANDED(a, b) a##b
