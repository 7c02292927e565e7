// How gRPC's polling thread waits for the next bytes. Asleep in epoll_wait it wakes tens of
// microseconds late on a virtual machine, on a core that has gone cold; so while requests come in
// quick succession it looks out for them for a bounded time first, as an idle lane's thread does
// (engine/handover.h). gRPC has no setting for that: this program's epoll_wait, which takes the
// C library's place for all that is linked to it, does it.
#pragma once

#include "absl/time/time.h"

namespace fuseblock {

// Before a thread of this process sleeps in epoll_wait it looks out for events for up to that long,
// one thread at a time, as long as that is worthwhile (SpinPolicy). Zero, as it is before the first
// call: never. Thread-safe.
void SpinBeforeSleeping(absl::Duration spin_max);

// What is left of an epoll_wait's timeout, which may be endless (negative), in whole milliseconds,
// rounded up.
int TimeoutLeft(int timeout_ms, absl::Duration spent);

}  // namespace fuseblock
