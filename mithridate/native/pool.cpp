#include "pool.hpp"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace mithridate {
namespace {

// How long who waits holds on to the core: about what it takes to be woken up.
constexpr auto PATIENCE = std::chrono::microseconds(50);

inline void pause() {
#if defined(__SSE__)
  _mm_pause();
#endif
}

// Whether it becomes true soon.
template <class Condition>
bool soon(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + PATIENCE;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return condition();
}

// What is to be done, and how far it is.
struct Job {
  const Work work;
  const long count;
  std::atomic<long> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // written by whoever sets `failed`

  void take_part() {
    for (long i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        work.call(work.what, i);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }
};

// Helpers are detached and the pool is never destroyed: they sleep until the process ends, and need
// nobody to tell them so. Everything here is guarded by `mutex_`; what is atomic is also looked at
// without it by those who are waiting.
class Pool {
 public:
  void run(int threads, Job& job) {
    std::unique_lock<std::mutex> alone(turn_, std::try_to_lock);
    if (threads <= 1 || job.count <= 1 || !alone) return job.take_part();
    int wanted = threads - 1;
    if (job.count - 1 < wanted) wanted = int(job.count - 1);
    hire(wanted);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      openings_ = wanted;
      calls_.fetch_add(1, std::memory_order_release);
    }
    if (wanted == 1)
      called_.notify_one();
    else
      called_.notify_all();
    job.take_part();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      openings_ = 0;  // whoever comes now comes too late
      job_ = nullptr;
    }
    const auto left = [this] { return busy_.load(std::memory_order_acquire) == 0; };
    if (soon(left)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait(lock, left);
  }

 private:
  // As many helpers as are wanted, or as the system allows.
  void hire(int wanted) {
    sigset_t all, before;
    sigfillset(&all);
    if (helpers_ < wanted) {
      pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the interpreter's business
      try {
        for (; helpers_ < wanted; ++helpers_) std::thread([this] { help(); }).detach();
      } catch (const std::system_error&) {
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }

  void help() {
    unsigned long heard = 0;
    const auto called = [&] { return calls_.load(std::memory_order_acquire) != heard; };
    while (true) {
      soon(called);
      std::unique_lock<std::mutex> lock(mutex_);
      called_.wait(lock, called);
      heard = calls_.load(std::memory_order_relaxed);
      if (openings_ == 0) continue;
      --openings_;
      busy_.fetch_add(1, std::memory_order_relaxed);
      Job& job = *job_;
      lock.unlock();
      job.take_part();
      lock.lock();
      if (busy_.fetch_sub(1, std::memory_order_release) == 1) left_.notify_one();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable called_, left_;
  Job* job_ = nullptr;
  int openings_ = 0, helpers_ = 0;  // the latter guarded by turn_
  std::atomic<unsigned long> calls_{0};
  std::atomic<int> busy_{0};  // helpers that take part
};

std::atomic<Pool*> current{nullptr};

// The pool of this process. A forked child has none of its parent's threads, and gets its own.
Pool& pool() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current.store(nullptr, std::memory_order_release); });
  (void)registered;
  Pool* found = current.load(std::memory_order_acquire);
  if (found == nullptr) {
    Pool* fresh = new Pool;
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;  // another thread was quicker
  }
  return *found;
}

}  // namespace

void share_out(int threads, long count, Work work) {
  Job job{work, count};
  pool().run(threads, job);
  if (job.failed) std::rethrow_exception(job.error);
}

}  // namespace mithridate
