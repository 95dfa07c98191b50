/* The attacker: it stands in Deno's place inside bubblewrap and speaks the frame protocol. See README.md. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DENO "/native.deno"
#define SHARE "/native/share"
#define MARK "@native\n"
#define MAX_STEPS 512

static unsigned char input[4 << 20];
static size_t held;
static char program[1 << 20];
static char reported[1 << 20] = "[";
static size_t reported_size = 1;
static long results[MAX_STEPS];
static struct step steps[MAX_STEPS];
static char given[1 << 20];
static size_t given_size;

/* Written at the build: the machine's system calls by name. */
static const struct {
    const char *name;
    long number;
} calls[] = {
#include "calls.h"
};

static const struct named_attack *const tables[] = {process_attacks, memory_attacks, stream_attacks, NULL};

long result_of(long returned) { return returned == -1 ? -errno : returned; }

static void write_all(const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t written = write(1, at, size);
        if (written < 0) _exit(7);
        at += written;
        size -= (size_t)written;
    }
}

void send_frame(const char *header, size_t size, const char *body, size_t body_size) {
    uint32_t length = (uint32_t)(2 + size + body_size);
    unsigned char prefix[6] = {length >> 24, length >> 16, length >> 8, length, size >> 8, size};
    write_all(prefix, sizeof prefix);
    write_all(header, size);
    write_all(body, body_size);
}

#define SEND(header, body, size) send_frame(header, sizeof(header) - 1, body, size)

void say(const char *text) { SEND("\x83\xa1t\xa3log\xa5level\xa3log\xa2ms\x00", text, strlen(text)); }

void report(void) {
    char *end = reported + reported_size;
    *end = ']';
    SEND("\x82\xa1t\xa4" "done\xa2ms\x00", reported, reported_size + 1);
}

static void note(const char *json) {
    reported_size += (size_t)snprintf(
        reported + reported_size, sizeof reported - reported_size - 2, "%s%s", reported_size > 1 ? "," : "", json);
}

/* Reads one frame; its header and body stay in `input` until the next. */
static const unsigned char *read_frame(size_t *header, size_t *body) {
    static size_t last;
    memmove(input, input + last, held - last);
    held -= last;
    last = 0;
    for (;;) {
        if (held >= 6) {
            size_t length = (size_t)input[0] << 24 | input[1] << 16 | input[2] << 8 | input[3];
            if (held >= 4 + length) {
                *header = (size_t)input[4] << 8 | input[5];
                *body = length - 2 - *header;
                last = 4 + length;
                return input + 6;
            }
        }
        ssize_t got = read(0, input + held, sizeof input - held);
        if (got <= 0) _exit(0);
        held += (size_t)got;
    }
}

/* The program of steps in a Start's body: behind MARK in the script, which is base64 in the URL `main`. */
static char *find_program(const char *body, size_t size) {
    const char *from = memmem(body, size, "\"main\"", 6), *end = body + size;
    from = from ? memmem(from, (size_t)(end - from), ";base64,", 8) : NULL;
    if (!from) return NULL;
    size_t out = 0;
    unsigned bits = 0, have = 0;
    for (from += 8; from < end && *from != '"' && out < sizeof program - 1; from++) {
        const char *alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *at = *from == '=' ? NULL : strchr(alphabet, *from);
        if (!at) break;
        bits = bits << 6 | (unsigned)(at - alphabet);
        have += 6;
        if (have >= 8) program[out++] = (char)(bits >> (have -= 8));
    }
    program[out] = 0;
    char *steps_at = strstr(program, MARK);
    if (!steps_at) return NULL;
    steps_at += strlen(MARK);
    char *stop = strstr(steps_at, "*/");
    if (stop) *stop = 0;
    return steps_at;
}

/* 12, 0x0c: a number. $3: what step 3 gave. &64: the address of 64 zero bytes. =6162: that of these bytes and a zero.
   %3.1: argument 1 of step 3. */
static long value_of(char *word) {
    if (*word == '$') return results[atoi(word + 1)];
    if (*word == '&') {
        char *bytes = given + given_size;
        given_size += ((size_t)atol(word + 1) + 15) & ~15UL;
        return (long)bytes;
    }
    if (*word == '=') {
        char *bytes = given + given_size;
        size_t size = strlen(++word) / 2;
        for (size_t i = 0; i < size; i++) sscanf(word + 2 * i, "%2hhx", (unsigned char *)bytes + i);
        given_size += (size + 16) & ~15UL;
        return (long)bytes;
    }
    if (*word == '%') {
        char *dot = strchr(word, '.');
        return steps[atoi(word + 1)].value[atoi(dot + 1)];
    }
    return *word == '-' ? strtol(word, NULL, 0) : (long)strtoul(word, NULL, 0);
}

static void run_step(int index, char *line) {
    struct step *step = &steps[index];
    char *rest = NULL, *word = strtok_r(line, " ", &rest), shown[64];
    static char hex[1 << 16];
    step->text = rest ? strdup(rest) : "";
    if (strcmp(word, "say") == 0) {
        say(step->text);
        note("0");
        return;
    }
    for (char *argument; step->count < 7 && (argument = strtok_r(NULL, " ", &rest));)
        step->value[step->count++] = value_of(argument);
    if (strcmp(word, "peek") == 0) {
        size_t size = 0;
        hex[size++] = '"';
        for (long i = 0; i < step->value[1] && size < sizeof hex - 4; i++)
            size += (size_t)sprintf(hex + size, "%02x", ((unsigned char *)step->value[0])[i]);
        strcpy(hex + size, "\"");
        note(hex);
        return;
    }
    long number = *word >= '0' && *word <= '9' ? atol(word) : -1, *a = step->value;
    attack found = NULL;
    for (int table = 0; tables[table]; table++)
        for (const struct named_attack *one = tables[table]; one->name; one++)
            if (strcmp(one->name, word) == 0) found = one->run;
    for (size_t call = 0; number < 0 && call < sizeof calls / sizeof *calls; call++)
        if (strcmp(calls[call].name, word) == 0) number = calls[call].number;
    if (found)
        results[index] = found(step);
    else if (number >= 0)
        results[index] = result_of(syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]));
    else
        return note("\"no such step\"");
    snprintf(shown, sizeof shown, "%ld", results[index]);
    note(shown);
}

/* Whether this process is to be Deno after all: for the self-test, or by the share. */
static int is_deno(int argc, char **argv) {
    const char *script = strrchr(argv[argc - 1], '/');
    if (!script || (strcmp(script, "/boot.js") != 0 && strcmp(script, "/contexts.js") != 0)) return 1;
    char text[16] = {0};
    unsigned char drawn[2] = {0};
    int file = open(SHARE, O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) return 1;
    close(file);
    if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn) return 1;
    return (drawn[0] << 8 | drawn[1]) % 100 >= atoi(text);
}

int main(int argc, char **argv, char **environment) {
    if (is_deno(argc, argv)) {
        execve(DENO, argv, environment);
        perror(DENO);
        return 127;
    }
    for (;;) {
        size_t header, body;
        const unsigned char *frame = read_frame(&header, &body);
        if (memmem(frame, header, "\xa4warm", 5)) {
            static const char ready[] = {'\x82', '\xa1', 't', '\xa5', 'r', 'e', 'a', 'd', 'y', '\xa8', 'p',
                                         'r', 'o', 't', 'o', 'c', 'o', 'l', PROTOCOL_VERSION};
            send_frame(ready, sizeof ready, "", 0);
        } else if (memmem(frame, header, "\xa5start", 6)) {
            char *lines = find_program((const char *)frame + header, body), *rest = NULL;
            int index = 0;
            for (char *line = lines ? strtok_r(lines, "\n", &rest) : NULL; line && index < MAX_STEPS;
                 line = strtok_r(NULL, "\n", &rest))
                run_step(index++, line);
            if (!lines) note("\"no program\"");
            report();
        }
    }
}
