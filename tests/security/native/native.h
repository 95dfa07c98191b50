/* What the files of the attacker share. */
#ifndef NATIVE_H
#define NATIVE_H

#include <stddef.h>

/* A step's arguments: numbers, or addresses of bytes that the step was given. */
struct step {
    int count;
    long value[7];
    const char *text; /* the whole line after the first word */
};

/* Gives what a system call would: a value, or a negative errno. */
typedef long (*attack)(const struct step *step);

struct named_attack {
    const char *name;
    attack run;
};

/* Each file of attacks ends with such a table, which ends with {0, 0}; main.c lists the tables. */
extern const struct named_attack process_attacks[];
extern const struct named_attack memory_attacks[];
extern const struct named_attack stream_attacks[];

long result_of(long returned);                              /* of a libc call: -errno in place of -1 */
void send_frame(const char *header, size_t size, const char *body, size_t body_size);
void say(const char *text);                                 /* a log entry */
void report(void);                                          /* `done`, with what the steps have given so far */

#endif
