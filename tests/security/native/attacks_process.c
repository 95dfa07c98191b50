/* Attacks by processes: forks, threads, namespaces, waiting. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct cap_data {
    unsigned effective, permitted, inheritable;
};

static long effective_capabilities(void) {
    struct {
        unsigned version;
        int pid;
    } header = {0x20080522, 0};
    struct cap_data data[2] = {{0, 0, 0}, {0, 0, 0}};
    if (syscall(SYS_capget, &header, data) == -1) return -errno;
    return (long)((unsigned long)data[1].effective << 32 | data[0].effective);
}

/* clone FLAGS: a child with these flags, by clone(2); gives the child's effective capabilities. Not for CLONE_VM. */
static long clone_child(const struct step *step) {
    int ends[2];
    long said = -EIO;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == -1) return -errno;
    long child = syscall(SYS_clone, step->value[0] | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        said = effective_capabilities();
        _exit(write(ends[1], &said, sizeof said) != sizeof said);
    }
    long failed = child == -1 ? -errno : 0;
    close(ends[1]);
    if (failed == 0 && read(ends[0], &said, sizeof said) != sizeof said) said = -EIO;
    close(ends[0]);
    if (failed == 0) waitpid((pid_t)child, NULL, 0);
    return failed ? failed : said;
}

/* clone3 FLAGS: the same by clone3(2). */
static long clone3_child(const struct step *step) {
    unsigned long args[11] = {(unsigned long)step->value[0], 0, 0, 0, SIGCHLD};
    int ends[2];
    long said = -EIO;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == -1) return -errno;
    long child = syscall(SYS_clone3, args, 64);
    if (child == 0) {
        said = effective_capabilities();
        _exit(write(ends[1], &said, sizeof said) != sizeof said);
    }
    long failed = child == -1 ? -errno : 0;
    close(ends[1]);
    if (failed == 0 && read(ends[0], &said, sizeof said) != sizeof said) said = -EIO;
    close(ends[0]);
    return failed ? failed : said;
}

static void *idle(void *nothing) {
    struct timespec hour = {3600, 0};
    for (;;) nanosleep(&hour, NULL);
    return nothing;
}

/* forks N: so many children that stay; gives how many there are, or the errno of the first that failed. */
static long forks(const struct step *step) {
    long made = 0;
    for (; made < step->value[0]; made++) {
        long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == -1) return made ? made : -errno;
        if (child == 0)
            idle(NULL);
    }
    return made;
}

/* threads N: as `forks`, but threads. */
static long threads(const struct step *step) {
    long made = 0;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (; made < step->value[0]; made++) {
        pthread_t thread;
        int failed = pthread_create(&thread, &small, idle, NULL);
        if (failed) return made ? made : -failed;
    }
    return made;
}

/* sleep MS */
static long rest(const struct step *step) {
    struct timespec time = {step->value[0] / 1000, step->value[0] % 1000 * 1000000};
    while (nanosleep(&time, &time) == -1) {
    }
    return 0;
}

/* spin: computes for ever. */
static long spin(const struct step *step) {
    (void)step;
    for (volatile unsigned long turns = 0;; turns++) {
    }
    return 0;
}

/* done: reports now, and goes on. */
static long done(const struct step *step) {
    (void)step;
    report();
    return 0;
}

/* raw ADDRESS SIZE: writes bytes to the host, frame or not. */
static long raw(const struct step *step) {
    return result_of(write(1, (const void *)step->value[0], (size_t)step->value[1]));
}

const struct named_attack process_attacks[] = {
    {"clone", clone_child}, {"clone3", clone3_child}, {"forks", forks}, {"threads", threads}, {"sleep", rest},
    {"spin", spin},         {"done", done},           {"raw", raw},     {0, 0},
};
