// Loops of allocate and free pairs, built on the machine with PyTorch's own headers: the current
// allocator as PyTorch's operators call it, and tenure's functions called directly.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Sizes = std::vector<int64_t>;

struct ByTorch {
    cudaStream_t stream;
    c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator =
        c10::cuda::CUDACachingAllocator::get();
    void* allocate(int64_t size) { return allocator->raw_alloc_with_stream(size, stream); }
    void free(void* pointer) { allocator->raw_delete(pointer); }
};

struct ByAddress {
    cudaStream_t stream;
    void* (*take)(size_t, int, cudaStream_t);
    void (*give)(void*, size_t, int, cudaStream_t);
    void* allocate(int64_t size) { return take(size, 0, stream); }
    void free(void* pointer) { give(pointer, 0, 0, stream); }
};

// Random replacement among `live` blocks; nanoseconds a pair.
template <typename Allocator>
double churn(Allocator allocator, const Sizes& sizes, int live, int pairs, int seed) {
    std::mt19937 random(seed);
    std::vector<void*> blocks(live);
    for (auto& block : blocks) block = allocator.allocate(sizes[random() % sizes.size()]);
    auto replace = [&](int times) {
        for (int i = 0; i < times; ++i) {
            void*& block = blocks[random() % live];
            allocator.free(block);
            block = allocator.allocate(sizes[random() % sizes.size()]);
        }
    };
    replace(pairs / 4);
    const auto begin = Clock::now();
    replace(pairs);
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
    for (void* block : blocks) allocator.free(block);
    return ns / pairs;
}

// Each thread on a stream of its own; wall-clock nanoseconds over all pairs.
template <typename Allocator>
double churn_threads(Allocator allocator, const Sizes& sizes, int live, int pairs, int threads) {
    std::vector<std::thread> running;
    const auto begin = Clock::now();
    for (int i = 0; i < threads; ++i)
        running.emplace_back([=]() mutable {
            cudaSetDevice(0);
            allocator.stream = c10::cuda::getStreamFromPool().stream();
            churn(allocator, sizes, live, pairs, i);
        });
    for (auto& thread : running) thread.join();
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
    return ns / (1.25 * pairs * threads);
}

ByAddress by_address(uintptr_t take, uintptr_t give) {
    return {nullptr, reinterpret_cast<decltype(ByAddress::take)>(take),
            reinterpret_cast<decltype(ByAddress::give)>(give)};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("by_torch", [](Sizes sizes, int live, int pairs) {
        return churn(ByTorch{nullptr}, sizes, live, pairs, 1);
    });
    m.def("by_torch_threads", [](Sizes sizes, int live, int pairs, int threads) {
        return churn_threads(ByTorch{nullptr}, sizes, live, pairs, threads);
    });
    m.def("by_address", [](uintptr_t take, uintptr_t give, Sizes sizes, int live, int pairs) {
        return churn(by_address(take, give), sizes, live, pairs, 1);
    });
    m.def("by_address_threads",
          [](uintptr_t take, uintptr_t give, Sizes sizes, int live, int pairs, int threads) {
              return churn_threads(by_address(take, give), sizes, live, pairs, threads);
          });
}
