/* A stand-in for NVML: see nvml_state.py. The names and structures are those of NVIDIA's nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, LOST = 15 };
static char handles[16];
static long number(void *device) { return (char *)device - handles; }

/* Copies the answer; returns NVML's status. */
static int answer(long gpu, const char *question, char *text, size_t size) {
    const char *path = getenv("NVML_ANSWERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], asked[64];
    long index;
    int offset, status = NOT_SUPPORTED;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%ld %63s %n", &index, asked, &offset) < 2 || index != gpu || strcmp(asked, question)) continue;
        line[strcspn(line, "\n")] = 0;
        status = strcmp(line + offset, "lost") ? OK : LOST;
        snprintf(text, size, "%s", line + offset);
        break;
    }
    if (file) fclose(file);
    return status;
}

static int whole(long gpu, const char *question, unsigned long long *value) {
    char text[64];
    int status = answer(gpu, question, text, sizeof text);
    if (status == OK) *value = strtoull(text, NULL, 10);
    return status;
}

static int small(long gpu, const char *question, unsigned *value) {
    unsigned long long wide = 0;
    int status = whole(gpu, question, &wide);
    if (status == OK) *value = (unsigned)wide;
    return status;
}

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int status) {
    return status == LOST ? "GPU is lost" : status == NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return answer(-1, "driver", text, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return small(-1, "cuda", (unsigned *)version); }
int nvmlDeviceGetCount_v2(unsigned *count) {
    char text[64];
    for (*count = 0; *count < sizeof handles && answer(*count, "uuid", text, sizeof text) != NOT_SUPPORTED; ++*count) {}
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    char text[64];
    int status = index < sizeof handles ? answer(index, "uuid", text, sizeof text) : INVALID;
    *device = handles + index;
    return status == NOT_SUPPORTED ? INVALID : status;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char text[64];
    for (unsigned index = 0; index < sizeof handles; ++index)
        if (answer(index, "uuid", text, sizeof text) == OK && !strcmp(text, uuid)) {
            *device = handles + index;
            return OK;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
    unsigned index = 0;
    int status = small(number(instance), "card", &index);
    *device = handles + index;
    return status;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { return answer(number(device), "uuid", text, size); }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned)number(device); return OK; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = (unsigned)number(device); return OK; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { return answer(number(device), "name", text, size); }

typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    return answer(number(device), "pci", pci->id, sizeof pci->id);
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) { return whole(number(device), "energy", mj); }
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    rates[1] = 0;
    return small(number(device), "utilisation", rates);
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]) {
    int status = whole(number(device), "memory", memory);
    unsigned long long used = 0;
    if (status == OK && whole(number(device), "used", &used) == OK) { memory[2] = used; memory[1] = memory[0] - used; }
    return status;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    return kind == 1 ? small(number(device), "sm_mhz", mhz) : NOT_SUPPORTED;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation) {
    return small(number(device), "pcie_generation", generation);
}
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *lanes) { return small(number(device), "pcie_width", lanes); }
int nvmlSystemGetConfComputeState(unsigned state[3]) {
    memset(state, 0, 3 * sizeof *state);
    return small(-1, "confidential", state + 1);
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    return sensor ? NOT_SUPPORTED : small(number(device), "temperature", celsius);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
    return whole(number(device), "reasons", bits);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    return whole(number(device), "reasons", bits);
}
int nvmlDeviceGetViolationStatus(void *device, int policy, unsigned long long times[2]) {
    times[0] = 0;
    return whole(number(device), policy == 0 ? "power_ns" : policy == 1 ? "thermal_ns" : "", times + 1);
}
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { return small(number(device), "power_limit", mw); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { return small(number(device), "power", mw); }
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) { return small(number(device), "persistence", mode); }
int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *pending) {
    int status = small(number(device), "ecc", now);
    *pending = *now;
    return status;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    int status = small(number(device), "mig", now);
    *pending = *now;
    return status;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    char text[64];
    int status = answer(number(device), "capability", text, sizeof text);
    return status == OK && sscanf(text, "%d.%d", major, minor) != 2 ? INVALID : status;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } Process;
static int processes(void *device, const char *question, unsigned *count, Process *found) {
    char text[512], *word, *rest = text;
    unsigned room = *count;
    int status = answer(number(device), question, text, sizeof text);
    *count = 0;
    while (status == OK && (word = strtok_r(rest, ",", &rest))) {
        if (*count < room && found) {
            memset(found + *count, 0, sizeof *found);
            found[*count].pid = (unsigned)strtoul(word, NULL, 10);
        }
        ++*count;
    }
    return status == OK && *count > room ? SMALL : status;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    return processes(device, "compute", count, found);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    return processes(device, "graphics", count, found);
}

/* An answer is ``process share`` pairs, as ``71 40,72 5``; empty for no sample since then. */
typedef struct { unsigned pid; unsigned long long at_us; unsigned shares[4]; } Sample;
int nvmlDeviceGetProcessUtilization(void *device, Sample *found, unsigned *count, unsigned long long since_us) {
    char text[512], *word, *rest = text;
    unsigned room = *count;
    int status = answer(number(device), "process_utilisation", text, sizeof text);
    *count = 0;
    while (status == OK && (word = strtok_r(rest, ",", &rest))) {
        if (*count < room && found) {
            memset(found + *count, 0, sizeof *found);
            sscanf(word, "%u %u", &found[*count].pid, &found[*count].shares[0]);
            found[*count].at_us = since_us + 1;
        }
        ++*count;
    }
    if (status == OK && !*count) return NOT_FOUND;
    return status == OK && *count > room ? SMALL : status;
}
