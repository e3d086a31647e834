/* A library with a large thread-local variable, which the loader allocates when a thread uses it first. */
#include <stddef.h>

char *local(void);

static __thread char variable[96 << 20];

char *local(void) { return variable; }
