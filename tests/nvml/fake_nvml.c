/* A libnvidia-ml.so.1 for tests, which the real binding loads on a machine without a GPU.
 *
 * State is a text file named by FAKE_NVML_STATE, read anew at every call, so that a test changes it
 * while a process runs. One GPU a line, of words NAME=NUMBER behind its UUID and its name:
 *   GPU-a FakeH200 total_mib=143771 used_mib=1024 gpu=7 mem=3 temp=41 power_mw=120000 ...
 * A value that is not there is refused (not supported). `lost=1` makes every call on the GPU fail so.
 * `mig=1` with `parts=N`: N MIG devices, called MIG-0 and so on. `processes=N`: that many.
 * FAKE_NVML_INIT_ERROR=N makes nvmlInit return N.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, UNINITIALIZED = 1, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
enum { MAX = 8, PARTS = 7 };
typedef unsigned long long u64;
typedef struct { int gpu, part; } device; /* part -1: the GPU itself */
static device devices[MAX][PARTS + 1];
static int opened;

/* Finds a GPU's line; returns how many there are. */
static int line_of(int wanted, char *out, size_t size) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    int count = 0;
    if (out) out[0] = 0;
    while (file && count < MAX && fgets(line, sizeof line, file))
        if (line[0] != '\n' && line[0] != '#' && count++ == wanted && out) snprintf(out, size, "%s", line);
    if (file) fclose(file);
    return count;
}

static int value(device *of, const char *name, u64 *out) {
    char line[1024], word[64];
    if (!opened) return UNINITIALIZED;
    if (!of) return BAD_ARGUMENT;
    line_of(of->gpu, line, sizeof line);
    if (!line[0] || strstr(line, " lost=1")) return LOST;
    snprintf(word, sizeof word, " %s=", name);
    char *found = strstr(line, word);
    if (!found) return NOT_SUPPORTED;
    *out = strtoull(found + strlen(word), NULL, 0);
    return OK;
}

static int number(device *of, const char *name, unsigned *out) {
    u64 wide = 0;
    int code = value(of, name, &wide);
    if (!code) *out = (unsigned)wide;
    return code;
}

static int text(device *of, int place, char *out, unsigned size) {
    char line[1024];
    u64 ignored;
    int code = value(of, "gpu", &ignored);
    if (code && code != NOT_SUPPORTED) return code;
    line_of(of->gpu, line, sizeof line);
    char *word = strtok(line, " \n");
    for (; place && word; place--) word = strtok(NULL, " \n");
    if (!word || strlen(word) + 1 > size) return TOO_SMALL;
    strcpy(out, word);
    return OK;
}

API int nvmlInitWithFlags(unsigned flags) {
    const char *code = getenv("FAKE_NVML_INIT_ERROR");
    (void)flags;
    if (code && atoi(code)) return atoi(code);
    for (int gpu = 0; gpu < MAX; gpu++)
        for (int part = -1; part < PARTS; part++) devices[gpu][part + 1] = (device){gpu, part};
    opened++;
    return OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { return opened ? (opened--, OK) : UNINITIALIZED; }
API const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error"; }
API int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!opened) return UNINITIALIZED;
    *count = line_of(-1, NULL, 0);
    return OK;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    if (!opened) return UNINITIALIZED;
    if ((int)index >= line_of(-1, NULL, 0)) return BAD_ARGUMENT;
    *out = &devices[index][0];
    return OK; /* of a lost GPU too: what is asked of it fails */
}
API int nvmlDeviceGetUUID(device *of, char *out, unsigned size) {
    int code = text(of, 0, out, size);
    if (code || of->part < 0) return code;
    snprintf(out, size, "MIG-%d", of->part);
    return OK;
}
API int nvmlDeviceGetName(device *of, char *out, unsigned size) { return text(of, 1, out, size); }
API int nvmlDeviceGetMinorNumber(device *of, unsigned *out) { return number(of, "minor", out); }
typedef struct { u64 total, free, used; } memory;
API int nvmlDeviceGetMemoryInfo(device *of, memory *out) {
    u64 total = 0, used = 0;
    int code = value(of, "total_mib", &total);
    if (code || (code = value(of, "used_mib", &used))) return code;
    if (of->part >= 0) total /= PARTS, used = 0;
    out->total = total << 20, out->used = used << 20, out->free = out->total - out->used;
    return OK;
}
typedef struct { unsigned gpu, memory; } rates;
API int nvmlDeviceGetUtilizationRates(device *of, rates *out) {
    int code = number(of, "gpu", &out->gpu);
    return code ? code : number(of, "mem", &out->memory);
}
API int nvmlDeviceGetTemperature(device *of, int sensor, unsigned *out) { (void)sensor; return number(of, "temp", out); }
API int nvmlDeviceGetPowerUsage(device *of, unsigned *out) { return number(of, "power_mw", out); }
API int nvmlDeviceGetEnforcedPowerLimit(device *of, unsigned *out) { return number(of, "limit_mw", out); }
API int nvmlDeviceGetClockInfo(device *of, int clock, unsigned *out) { return number(of, clock == 1 ? "sm" : "mem_clock", out); }
API int nvmlDeviceGetMaxClockInfo(device *of, int clock, unsigned *out) { return number(of, clock == 1 ? "sm_max" : "mem_max", out); }
API int nvmlDeviceGetCurrentClocksThrottleReasons(device *of, u64 *out) { return value(of, "reasons", out); }
API int nvmlDeviceGetTotalEccErrors(device *of, int kind, int counter, u64 *out) { (void)counter; return value(of, kind ? "ecc_bad" : "ecc_fixed", out); }
API int nvmlDeviceGetMigMode(device *of, unsigned *now, unsigned *later) {
    int code = number(of, "mig", now);
    *later = *now;
    return code;
}
API int nvmlDeviceGetMaxMigDeviceCount(device *of, unsigned *out) { (void)of; *out = PARTS; return OK; }
API int nvmlDeviceGetMigDeviceHandleByIndex(device *of, unsigned index, device **out) {
    unsigned parts = 0;
    int code = number(of, "parts", &parts);
    if (code) return code;
    if (index >= parts) return NOT_FOUND;
    *out = &devices[of->gpu][index + 1];
    return OK;
}
typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } process;
API int nvmlDeviceGetComputeRunningProcesses_v3(device *of, unsigned *count, process *out) {
    unsigned there = 0;
    int code = number(of, "processes", &there);
    if (code) return code;
    if (there && *count < there) { *count = there; return TOO_SMALL; }
    for (unsigned i = 0; i < there; i++) out[i] = (process){1000 + i, 1 << 20, -1, -1};
    *count = there;
    return OK;
}
