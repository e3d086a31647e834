/* What the test programs share: checks that end the program, and talk with the test. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                     \
  do {                                                                                  \
    if (!(what)) {                                                                      \
      fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #what, errno,   \
              strerror(errno));                                                         \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#define FAILS(what, wanted)                                                             \
  do {                                                                                  \
    errno = 0;                                                                          \
    int failed = (what);                                                                \
    CHECK(failed && errno == (wanted));                                                 \
  } while (0)

/* Says a line, and waits for one. */
static inline void say(const char *line) {
  puts(line);
  fflush(stdout);
}

static inline void hear(void) {
  char line[64];
  CHECK(fgets(line, sizeof line, stdin) != NULL);
}

#endif
