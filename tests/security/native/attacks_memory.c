/* Attacks on memory. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* tables MIB: has the kernel make so much of page tables, 4 KiB for each 2 MiB of read-only pages that are looked at, and
   that no limit on data counts. Gives the bytes. */
static long tables(const struct step *step) {
    long count = step->value[0] << 8, stride = 2 << 20;
    char *pages = mmap(NULL, (size_t)(count * stride), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return -errno;
    madvise(pages, (size_t)(count * stride), MADV_NOHUGEPAGE);
    long seen = 0;
    for (long at = 0; at < count; at++) seen += ((volatile char *)pages)[at * stride];
    return (count << 12) + seen;
}

/* pipes MIB: fills pipes of a MiB each; gives the bytes in them, or the errno when there was none. */
static long pipes(const struct step *step) {
    static char data[1 << 16];
    long held = 0;
    for (long mib = 0; mib < step->value[0]; mib++) {
        int ends[2];
        ssize_t written;
        if (pipe2(ends, O_NONBLOCK) == -1) return held ? held : -errno;
        fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
        while ((written = write(ends[1], data, sizeof data)) > 0) held += written;
    }
    return held;
}

const struct named_attack memory_attacks[] = {
    {"touch", touch}, {"fill", fill}, {"tables", tables}, {"pipes", pipes}, {0, 0},
};
