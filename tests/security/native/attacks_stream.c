/* Attacks on who reads the stream: the host, and the broker behind it. */
#define _GNU_SOURCE
#include "native.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* notices COUNT SIZE: notices of SIZE bytes each, JSON of as many small arrays as fit. Gives how many were sent. */
static long notices(const struct step *step) {
    static const char header[] = "\x81\xa1t\xa6notice";
    size_t size = (size_t)step->value[1] / 3 * 3 + 1;
    char *body = malloc(size);
    if (!body) return -1;
    for (size_t at = 0; at + 3 < size; at += 3) memcpy(body + at, at ? ",[]" : "[[]", 3);
    body[size - 1] = ']';
    for (long sent = 0; sent < step->value[0]; sent++) send_frame(header, sizeof header - 1, body, size);
    free(body);
    return step->value[0];
}

/* repeat ADDRESS SIZE TIMES: writes the same bytes to the host, again and again. Gives how often. */
static long repeat(const struct step *step) {
    for (long sent = 0; sent < step->value[2]; sent++) {
        const char *at = (const char *)step->value[0], *end = at + step->value[1];
        while (at < end) {
            ssize_t written = write(1, at, (size_t)(end - at));
            if (written < 0) return sent;
            at += written;
        }
    }
    return step->value[2];
}

const struct named_attack stream_attacks[] = {{"notices", notices}, {"repeat", repeat}, {0, 0}};
