// Threads of our own, which wait without holding on to a core: two processes on the same cores do
// not get into each other's way.
#pragma once

namespace mithridate {

// Work on item number i.
struct Work {
  void (*call)(const void* what, long i);
  const void* what;
};

// Items 0 … count - 1, each once, by at most so many threads, of which the caller is one. Who takes
// which item is left to chance, so the items must not depend on it. If another thread of this process
// is in here already, the caller works alone. What an item throws first is thrown.
void share_out(int threads, long count, Work work);

template <class Each>
void parallel_for(int threads, long count, const Each& each) {
  share_out(threads, count,
            {[](const void* what, long i) { (*static_cast<const Each*>(what))(i); }, &each});
}

}  // namespace mithridate
