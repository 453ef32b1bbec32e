// Threads that share clients out among themselves, and the memory that they use again.
#pragma once
#include <nanobind/nanobind.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace wecfl {
namespace nb = nanobind;

struct Free {
    void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

// Large pieces are on large pages where the system has them: a step of a ResNet-8 goes through 60 MB, and looking up
// small pages took a fourteenth of it.
inline Memory zeros(size_t bytes) {
    constexpr size_t large_page = size_t(1) << 21;
    const size_t unit = bytes < large_page ? 64 : large_page, size = (bytes + unit - 1) / unit * unit;
    void* p = std::aligned_alloc(unit, size);
    if (!p) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (unit == large_page) madvise(p, size, MADV_HUGEPAGE);
#endif
    std::memset(p, 0, bytes);
    return Memory(p);
}

// Memory kept from call to call: fresh pages would cost several steps of a small model. A piece is
// zero when it is new and comes back as it was left.
class Shelf {
public:
    std::shared_ptr<void> take(size_t bytes) {
        Memory piece;
        {
            std::lock_guard lock(mutex_);
            if (auto found = free_.extract(bytes)) piece = std::move(found.mapped());
        }
        if (!piece) piece = zeros(bytes);
        return {piece.release(), [this, bytes](void* p) {
                    std::lock_guard lock(mutex_);
                    free_.emplace(bytes, Memory(p));
                }};
    }

private:
    std::mutex mutex_;
    std::multimap<size_t, Memory> free_;
};

// Runs `work(next, stop)` on so many threads without the GIL. Each takes clients by counting `next` up, and
// ends when there are no more or `stop` is set. Ctrl-C is looked for every 50 ms.
template <class F>
void for_each_client(int threads, F work) {
    if (threads < 1) throw std::invalid_argument("threads must be at least 1");
    std::atomic<int64_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable finished;
    int running = 0;
    std::string problem;
    auto loop = [&] {
        try {
            work(next, stop);
        } catch (const std::exception& error) {
            stop = true;
            std::lock_guard lock(mutex);
            problem = error.what();
        }
        std::lock_guard lock(mutex);
        if (--running == 0) finished.notify_all();
    };
    std::vector<std::thread> pool;
    bool interrupted = false;
    {
        nb::gil_scoped_release release;
        running = threads;
        try {
            while (int(pool.size()) < threads) pool.emplace_back(loop);
        } catch (const std::system_error&) {
            stop = true;
            std::lock_guard lock(mutex);
            running -= threads - int(pool.size());
            problem = "the machine can't start " + std::to_string(threads) + " threads";
        }
        std::unique_lock lock(mutex);
        while (running &&
               !finished.wait_for(lock, std::chrono::milliseconds(50), [&] { return running == 0; })) {
            lock.unlock();
            {
                nb::gil_scoped_acquire acquire;
                if (!interrupted && PyErr_CheckSignals() != 0) interrupted = stop = true;
            }
            lock.lock();
        }
        lock.unlock();
        for (std::thread& t : pool) t.join();
    }
    if (interrupted) throw nb::python_error();
    if (!problem.empty()) throw std::runtime_error(problem);
}

}  // namespace wecfl
