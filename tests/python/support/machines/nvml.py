"""A fake of the NVIDIA driver's library, built from C."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

# Four GPUs; of the seven MIG devices that the last one could have, two are there. The serial of GPU 1,
# where GPU 2 is and how busy GPU 3 is are not known. The library has a descriptor, as the real one has, and a
# thread with another table of descriptors gets no answers (unshare(2), CLONE_FILES). Lines
# "PID GPU MIB PERCENT" of the file `gpu_processes` replace the processes of that GPU; with PROCESS_USE, the
# driver tells their use apart. With TELLS, a process that loads the library leaves a line in `loaded`, and
# one that initializes it a line in `asked`. USED is the memory in use in MiB; with FAULTY, GPU 2 has memory
# errors and GPU 3 is lost.
FAKE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define OK 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define LOST 15
#define UNKNOWN 999
#define MIB 1048576ULL
#ifndef VERSION
#define VERSION "580.65.06"
#endif
#ifndef GPUS
#define GPUS 4
#endif
#ifndef USED
#define USED 3000
#endif
#define NUMBER(device) ((unsigned long)(device) - 1)
static void leave(const char *name) {
    char text[32];
    int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0 || write(file, text, snprintf(text, sizeof text, "%d\n", getpid())) < 0) return;
    close(file);
}
static void hang(void) {
    leave("hanging.0");
    for (;;) pause();
}
#ifdef TELLS
__attribute__((constructor)) static void loaded(void) { leave("loaded"); }
#endif
#ifdef UNLOADED
int nvmlInit_v2(void) { return DRIVER_NOT_LOADED; }
#else
static int users, descriptor = -1;
static ino_t own;
static ino_t inode(void) {
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}
static int answers(void) { return users && inode() == own; }
int nvmlInit_v2(void) {
    if (!users++) {
        descriptor = memfd_create("driver", MFD_CLOEXEC);
        own = inode();
    }
#ifdef TELLS
    leave("asked");
#endif
#ifdef HANGS_AT_FIRST
    hang();
#endif
    return OK;
}
#endif
#ifdef UNLOADED
int nvmlShutdown(void) { return OK; }
static int answers(void) { return 1; }
#else
int nvmlShutdown(void) {
    if (!--users) close(descriptor);
    return OK;
}
#endif
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return answers() ? OK : UNKNOWN; }
#ifndef OLD
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(unsigned long)(index + 1);
    if (!answers()) return UNKNOWN;
#ifdef FAULTY
    if (index == 3) return LOST;
#endif
    return index < GPUS ? OK : NOT_FOUND;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    *count = device == (void *)4 ? 7 : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig) {
    *mig = (void *)(unsigned long)(100 + index);
    return device == (void *)4 && (index == 0 || index == 2) ? OK : NOT_FOUND;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    unsigned long number = (unsigned long)device;
    const char *form = number < 100 ? "GPU-a%lu-0000" : "MIG-b%lu-0000";
    snprintf(uuid, length, form, number < 100 ? number - 1 : number - 100);
    return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char id_text[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x1a + 0x40 * NUMBER(device);
    snprintf(pci->id_text, sizeof pci->id_text, "00000000:%02X:00.0", pci->bus);
    return NUMBER(device) == 2 ? NOT_SUPPORTED : OK;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, VERSION);
    return OK;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA Fake %lu", NUMBER(device));
    return OK;
}
int nvmlDeviceGetSerial(void *device, char *serial, unsigned length) {
    snprintf(serial, length, "165%lu", NUMBER(device));
    return NUMBER(device) == 1 ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetDisplayActive(void *device, unsigned *enabled) { *enabled = 0; return OK; }
int nvmlDeviceGetDisplayMode(void *device, unsigned *enabled) { *enabled = NUMBER(device) == 0; return OK; }
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
    memory->total = 143771 * MIB;
    memory->reserved = 651 * MIB;
    memory->used = (USED + NUMBER(device)) * MIB + MIB / 2;
    memory->free = memory->total - memory->reserved - memory->used;
    return memory->version == (sizeof *memory | 2 << 24) ? OK : NOT_SUPPORTED;
}
#ifdef FAULTY
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *count) {
    // Uncorrected ones, since the driver was loaded.
    *count = NUMBER(device) == 2 && kind == 1 && since == 0 ? 7 : 0;
    return OK;
}
#endif
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *utilization) {
#ifdef HANGS
    hang();
#endif
    utilization->gpu = 40 + NUMBER(device);
    return NUMBER(device) == 3 ? NOT_SUPPORTED : OK;
}
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };
struct use { unsigned pid, mib, percent; };
static unsigned read_uses(void *device, struct use *uses, unsigned most) {
    unsigned count = 0, number;
    struct use use;
    FILE *file = fopen("gpu_processes", "r");
    if (!file) return 0;
    while (count < most && fscanf(file, "%u %u %u %u", &use.pid, &number, &use.mib, &use.percent) == 4)
        if (number == NUMBER(device)) uses[count++] = use;
    fclose(file);
    return count;
}
#define MOST_USES 16
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    struct use uses[MOST_USES];
    unsigned wanted = read_uses(device, uses, MOST_USES), room = *count;
#ifdef HANGS_ON_PROCESSES
    hang();
#endif
    if (wanted) {
        *count = wanted;
        if (room < wanted) return INSUFFICIENT_SIZE;
        for (unsigned i = 0; i < wanted; i++)
            processes[i] = (struct process){uses[i].pid, uses[i].mib * MIB, ~0u, ~0u};
        return OK;
    }
    wanted = NUMBER(device) % 2 ? 0 : 2;
    *count = wanted;
    if (room < wanted) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < wanted; i++)
        processes[i] = (struct process){4000 + 10 * NUMBER(device) + i, i ? ~0ULL : 512 * MIB, ~0u, ~0u};
    return OK;
}
#ifdef PROCESS_USE
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(void *device, struct sample *samples, unsigned *count,
                                    unsigned long long since) {
    struct use uses[MOST_USES];
    unsigned wanted = read_uses(device, uses, MOST_USES), room = *count;
    if (!wanted) return NOT_FOUND;
    *count = 2 * wanted;
    if (!samples || room < *count) return INSUFFICIENT_SIZE;
    // The latest one counts.
    for (unsigned i = 0; i < wanted; i++)
        for (unsigned age = 0; age < 2; age++)
            samples[2 * i + age] =
                (struct sample){uses[i].pid, since + 200 - 100 * age, age ? 99 : uses[i].percent, 0, 0, 0};
    return OK;
}
#endif
int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
#ifdef LONG
    memset(name, 'x', length - 1);
    name[length - 1] = 0;
    return OK;
#endif
    snprintf(name, length, "/usr/bin/python%u", pid);
    return pid % 10 ? NOT_FOUND : OK;
}
#endif
"""

Driver = Callable[..., dict[str, str]]
HIDDEN = ("CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "XPULINK_VISIBLE_DEVICES")


def environment(folder: Path, *definitions: str) -> dict[str, str]:
    """This process's environment, with the fake for the driver's library."""
    source = folder / "nvml.c"
    source.write_text(FAKE)
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", *definitions, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    environ = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**environ, "LD_LIBRARY_PATH": str(folder)}
