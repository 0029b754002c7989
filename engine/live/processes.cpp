// Who uses a device, as NVIDIA's management library (NVML) says; loaded when first needed.
#include <dlfcn.h>
#include <unistd.h>

#include <vector>

#include "engine/live/shortage.hpp"

namespace tenure::live {

namespace {

using NvmlDevice = void*;
constexpr int nvml_success = 0;
constexpr int insufficient_size = 7;

struct NvmlProcess {  // nvmlProcessInfo_v1_t
    unsigned pid;
    unsigned long long memory;  // bytes; all ones where the driver does not know
};

struct Nvml {
    int (*init)() = nullptr;
    int (*device_at)(const char*, NvmlDevice*) = nullptr;
    int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
    bool usable = false;

    Nvml() {
        void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
        if (!library) return;
        auto load = [&](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            return function != nullptr;
        };
        usable = load(init, "nvmlInit_v2") && load(device_at, "nvmlDeviceGetHandleByPciBusId_v2") &&
                 load(processes, "nvmlDeviceGetComputeRunningProcesses") && init() == nvml_success;
    }
};

}  // namespace

std::string processes_on(const std::string& pci_bus_id) {
    static const Nvml* nvml = new Nvml;
    NvmlDevice device = nullptr;
    if (!nvml->usable || nvml->device_at(pci_bus_id.c_str(), &device) != nvml_success) return "";
    std::vector<NvmlProcess> processes(8);
    auto count = static_cast<unsigned>(processes.size());
    int result = nvml->processes(device, &count, processes.data());
    for (int tries = 0; result == insufficient_size && tries < 8; ++tries) {
        processes.resize(2 * count + 1);
        count = static_cast<unsigned>(processes.size());
        result = nvml->processes(device, &count, processes.data());
    }
    if (result != nvml_success) return "";
    processes.resize(count);
    std::string text;
    for (const NvmlProcess& process : processes) {
        if (process.memory > 1ull << 60) continue;
        text += process.pid == static_cast<unsigned>(getpid())
                    ? "Including non-PyTorch memory, this process"
                    : "Process " + std::to_string(process.pid);
        text += " has " + format_size(static_cast<Bytes>(process.memory)) + " memory in use. ";
    }
    return text;
}

}  // namespace tenure::live
