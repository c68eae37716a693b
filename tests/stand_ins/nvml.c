/* NVML with four GPUs: two whole ones, a lost one, and one that MIG divides into two instances. */
#include <stdio.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_FOUND = 6, LOST = 15 };
typedef struct { int gpu, instance; } Handle;
static Handle gpus[4] = {{0, -1}, {1, -1}, {2, -1}, {3, -1}};
static Handle instances[2] = {{3, 0}, {3, 1}};
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.159.04"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle) {
    if (index == 2) return LOST;
    *handle = &gpus[index];
    return OK;
}
int nvmlDeviceGetName(Handle *handle, char *text, unsigned length) { snprintf(text, length, "NVIDIA Stand-in"); return OK; }
int nvmlDeviceGetMinorNumber(Handle *handle, unsigned *minor) { *minor = 70 + handle->gpu; return OK; }
int nvmlDeviceGetUUID(Handle *handle, char *text, unsigned length) {
    if (handle->instance < 0) snprintf(text, length, "GPU-%08x-0000-0000-0000-000000000000", 0xa0 + handle->gpu);
    else snprintf(text, length, "MIG-%08x-0000-0000-0000-000000000000", 0xb0 + handle->instance);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(Handle *handle, Pci *pci) {
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0xA0 + handle->gpu);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(Handle *handle, int *major, int *minor) { *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetMemoryInfo(Handle *handle, Memory *memory) {
    memset(memory, 0, sizeof *memory);
    memory->total = handle->instance < 0 ? 80ULL << 30 : 10ULL << 30;
    return OK;
}
int nvmlDeviceGetMigMode(Handle *handle, unsigned *current, unsigned *pending) { *current = *pending = handle->gpu == 3; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(Handle *handle, unsigned *count) { *count = handle->gpu == 3 ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, unsigned index, Handle **instance) {
    if (index > 1) return NOT_FOUND;
    *instance = &instances[index];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(Handle *handle, unsigned *id) { *id = 7 + handle->instance; return OK; }
int nvmlDeviceGetComputeInstanceId(Handle *handle, unsigned *id) { *id = 0; return OK; }
