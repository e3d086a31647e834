/* A plug-in that is loaded with RTLD_DEEPBIND, so that it does not find the functions of preloaded libraries: it
 * frees what the program allocated, and the program what it did. */
#include "common.h"
#include <dlfcn.h>

int main(void) {
  void *library = dlopen("./bound.so", RTLD_NOW | RTLD_DEEPBIND);
  if (library == NULL)
    FAIL("%s", dlerror());
  char *(*made)(int) = (char *(*)(int))dlsym(library, "made");
  int (*reads)(void) = (int (*)(void))dlsym(library, "reads");
  void (*gone)(char *) = (void (*)(char *))dlsym(library, "gone");
  char *(*grown)(char *, size_t) = (char *(*)(char *, size_t))dlsym(library, "grown");
  CHECK(made != NULL && reads != NULL && gone != NULL && grown != NULL);
  char *large = malloc(MIB(100));
  CHECK(large != NULL);
  memset(large, 1, MIB(100));
  for (int i = 0; i < 1000; i++) {
    char *text = made(i);
    CHECK(strncmp(text, "value", 5) == 0);
    if (i % 2)
      free(text);
    else
      gone(text);
    CHECK(reads() == 0);
    gone(malloc(50 + (size_t)i));
  }
  large = grown(large, MIB(140));
  CHECK(large != NULL && large[MIB(99)] == 1);
  free(large);
  CHECK(dlclose(library) == 0);
  puts("deepbind ok");
  return 0;
}
