// NVIDIA's driver, loaded when it is first needed: nothing of CUDA is needed to build or to import.
//
// One table lists every function used. A function that the driver lacks is never null: its place
// holds a stub that returns `missing_function`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

namespace tenure::driver {

using Result = int;
using DeviceNumber = int;
using Context = CUctx_st*;
using StreamPointer = CUstream_st*;
using EventPointer = CUevent_st*;
using DevicePointer = unsigned long long;
using AllocationHandle = unsigned long long;

constexpr Result success = 0;
constexpr Result out_of_memory = 2;
constexpr Result not_initialized = 3;
constexpr Result shut_down = 4;  // the process is exiting
constexpr Result not_ready = 600;
constexpr Result missing_function = 500;  // CUDA_ERROR_NOT_FOUND

constexpr int attribute_virtual_memory = 102;
constexpr unsigned event_without_timing = 2;
constexpr int capture_mode_relaxed = 2;
constexpr int capture_none = 0;
constexpr int allocation_pinned = 1;
constexpr int location_device = 1;
constexpr int access_read_write = 3;
constexpr int granularity_minimum = 0;
constexpr unsigned ipc_lazy_peer_access = 1;

// The structures of cuda.h that cross the border, field for field.
struct Location {
    int type;
    int id;
};
struct AllocationFlags {
    unsigned char compression;
    unsigned char gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct AllocationProperties {
    int type;
    int requested_handle_types;
    Location location;
    void* win32_metadata;
    AllocationFlags flags;
};
struct AccessDescription {
    Location location;
    int flags;
};
struct IpcHandle {  // of a cudaMalloc
    unsigned char bytes[64];
};
static_assert(sizeof(AllocationProperties) == 32 && sizeof(AccessDescription) == 12);

// member, name in the library, parameters
#define TENURE_DRIVER_FUNCTIONS(X)                                                       \
    X(init, cuInit, (unsigned))                                                          \
    X(driver_version, cuDriverGetVersion, (int*))                                        \
    X(device_count, cuDeviceGetCount, (int*))                                            \
    X(device_get, cuDeviceGet, (DeviceNumber*, int))                                     \
    X(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceNumber))                 \
    X(device_total_memory, cuDeviceTotalMem_v2, (std::size_t*, DeviceNumber))            \
    X(device_pci_bus_id, cuDeviceGetPCIBusId, (char*, int, DeviceNumber))                \
    X(device_can_access_peer, cuDeviceCanAccessPeer, (int*, DeviceNumber, DeviceNumber)) \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceNumber))        \
    X(context_get_current, cuCtxGetCurrent, (Context*))                                  \
    X(context_push_current, cuCtxPushCurrent_v2, (Context))                              \
    X(context_pop_current, cuCtxPopCurrent_v2, (Context*))                               \
    X(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                        \
    X(memory_allocate, cuMemAlloc_v2, (DevicePointer*, std::size_t))                     \
    X(memory_free, cuMemFree_v2, (DevicePointer))                                        \
    X(address_reserve, cuMemAddressReserve,                                              \
      (DevicePointer*, std::size_t, std::size_t, DevicePointer, unsigned long long))     \
    X(address_free, cuMemAddressFree, (DevicePointer, std::size_t))                      \
    X(memory_create, cuMemCreate,                                                        \
      (AllocationHandle*, std::size_t, const AllocationProperties*, unsigned long long)) \
    X(memory_release, cuMemRelease, (AllocationHandle))                                  \
    X(memory_map, cuMemMap,                                                              \
      (DevicePointer, std::size_t, std::size_t, AllocationHandle, unsigned long long))   \
    X(memory_unmap, cuMemUnmap, (DevicePointer, std::size_t))                            \
    X(memory_set_access, cuMemSetAccess,                                                 \
      (DevicePointer, std::size_t, const AccessDescription*, std::size_t))               \
    X(memory_granularity, cuMemGetAllocationGranularity,                                 \
      (std::size_t*, const AllocationProperties*, int))                                  \
    X(ipc_handle, cuIpcGetMemHandle, (IpcHandle*, DevicePointer))                        \
    X(ipc_open, cuIpcOpenMemHandle_v2, (DevicePointer*, IpcHandle, unsigned))            \
    X(ipc_close, cuIpcCloseMemHandle, (DevicePointer))                                   \
    X(context_synchronize, cuCtxSynchronize, ())                                         \
    X(event_create, cuEventCreate, (EventPointer*, unsigned))                            \
    X(event_destroy, cuEventDestroy_v2, (EventPointer))                                  \
    X(event_record, cuEventRecord, (EventPointer, StreamPointer))                        \
    X(event_query, cuEventQuery, (EventPointer))                                         \
    X(event_synchronize, cuEventSynchronize, (EventPointer))                             \
    X(stream_wait_event, cuStreamWaitEvent, (StreamPointer, EventPointer, unsigned))     \
    X(stream_synchronize, cuStreamSynchronize, (StreamPointer))                          \
    X(stream_context, cuStreamGetCtx, (StreamPointer, Context*))                         \
    X(stream_is_capturing, cuStreamIsCapturing, (StreamPointer, int*))                   \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*))                  \
    X(error_name, cuGetErrorName, (Result, const char**))

struct Functions {
#define TENURE_DRIVER_MEMBER(member, name, parameters) Result(*member) parameters;
    TENURE_DRIVER_FUNCTIONS(TENURE_DRIVER_MEMBER)
#undef TENURE_DRIVER_MEMBER
};

// The driver's functions; the first call loads the library (libcuda.so.1, or what the environment
// variable TENURE_DRIVER_LIBRARY names). Without one, every function is a stub.
const Functions& functions();

// Why there is no driver: the loader's own words; empty if there is one.
const std::string& load_error();

// "CUDA_ERROR_OUT_OF_MEMORY", or the number where the driver does not say.
std::string name_of(Result result);

}  // namespace tenure::driver
