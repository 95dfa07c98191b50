/* Attacks on memory. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* touch ADDRESS SIZE: writes to each page of it; gives the size. A negative address is an error that it hands on. */
static long touch(const struct step *step) {
    if (step->value[0] < 0) return step->value[0];
    for (long at = 0; at < step->value[1]; at += 4096) ((volatile char *)step->value[0])[at] = 1;
    return step->value[1];
}

/* fill MIB HOW: takes memory a MiB at a time; HOW is the flags of mmap(2), or 0 for private pages that are made
   read-only when they are filled. Gives the bytes taken, or the errno when there was none. */
static long fill(const struct step *step) {
    long taken = 0;
    int flags = step->value[1] ? (int)step->value[1] : MAP_PRIVATE | MAP_ANONYMOUS;
    for (long mib = 0; mib < step->value[0]; mib++) {
        char *page = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (page == MAP_FAILED) return taken ? taken : -errno;
        memset(page, 1, 1 << 20);
        if (step->value[1] == 0 && mprotect(page, 1 << 20, PROT_READ) == -1) return taken ? taken : -errno;
        taken += 1 << 20;
    }
    return taken;
}

const struct named_attack memory_attacks[] = {{"touch", touch}, {"fill", fill}, {0, 0}};
