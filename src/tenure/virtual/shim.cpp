// Makes PyTorch believe that one CUDA device is there. It never computes: tensors on the device are
// fake ones, and this only answers which device and stream are current.
// Compiled on first use against the headers of the torch that is installed; see shim.py, which
// defines TENURE_CUDA_BUILD where that torch has CUDA's libraries.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

namespace at::accelerator {
// A CPU build answers "none" by a compile-time switch; this definition is found first.
__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(
    bool /*checked*/) {
    return c10::DeviceType::CUDA;
}
}  // namespace at::accelerator

// The registry's key is the name of the class, so it has to be this one.
struct CUDAHooks : public at::CUDAHooksInterface {
    explicit CUDAHooks(at::CUDAHooksArgs /*unused*/) {}
    void init() const override {}
    bool hasCUDA() const override { return false; }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return false; }
    bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    c10::DeviceIndex current_device() const override { return 0; }
};

#ifdef TENURE_CUDA_BUILD
namespace at::detail {
// libtorch_cuda registers hooks of its own, which ask the driver; this definition is found first.
__attribute__((visibility("default"))) const CUDAHooksInterface& getCUDAHooks() {
    static const CUDAHooks hooks{at::CUDAHooksArgs{}};
    return hooks;
}
}  // namespace at::detail
#else
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);
#endif

namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

c10::Device the_device() { return {kCuda, 0}; }

// Each thread's, by the numbers that Python gives (face.py); 0 is the default one. Autograd runs a
// node's backward on the stream of its forward.
thread_local c10::StreamId current_stream = 0;

c10::Stream stream_of(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, the_device(), id);
}

struct Guard : public c10::impl::NoOpDeviceGuardImpl<kCuda> {
    c10::Device exchangeDevice(c10::Device /*to*/) const override { return the_device(); }
    c10::Device getDevice() const override { return the_device(); }
    c10::Stream getStream(c10::Device /*of*/) const noexcept override {
        return stream_of(current_stream);
    }
    c10::Stream getDefaultStream(c10::Device /*of*/) const override { return stream_of(0); }
    c10::Stream exchangeStream(c10::Stream to) const noexcept override {
        return stream_of(std::exchange(current_stream, to.id()));
    }
    void record(void** /*event*/, const c10::Stream& /*on*/, const c10::DeviceIndex /*of*/,
                const c10::EventFlag /*flag*/) const override {}
    void block(void* /*event*/, const c10::Stream& /*on*/) const override {}
    bool queryEvent(void* /*event*/) const override { return true; }
    void synchronizeEvent(void* /*event*/) const override {}
    void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}
    void recordDataPtrOnStream(const c10::DataPtr& /*data*/,
                               const c10::Stream& /*stream*/) const override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

}  // namespace

#define TENURE_EXPORT extern "C" __attribute__((visibility("default")))

TENURE_EXPORT void tenure_install_guard() { c10::impl::registerDeviceGuard(kCuda, new Guard()); }
TENURE_EXPORT long tenure_current_stream() { return current_stream; }
TENURE_EXPORT void tenure_set_stream(long id) { current_stream = id; }
