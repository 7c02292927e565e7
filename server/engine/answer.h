// The last step of a request that has come to its end on a lane: its answer.
#pragma once

#include "server/engine/batch.h"
#include "server/engine/entry.h"

namespace fuseblock {

// Answers the requests that ended with this batch, which lanes are done with: calls `done`, counts
// what became of them, and drops the batch. Returns how many they were, for the engine to be told
// (Engine::Impl::Answered) when nothing of them is held any more.
int64_t AnswerEnded(Batch& batch, Entries ended);

}  // namespace fuseblock
