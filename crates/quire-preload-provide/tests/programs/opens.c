/* Opens a library, again and again in children, and asks it whether all is right.  Argument: its path. */
#include "common.h"
#include <dlfcn.h>

static void open_it(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (library == NULL)
    FAIL("%s", dlerror());
  int (*is_right)(void) = (int (*)(void))dlsym(library, "is_right");
  CHECK(is_right != NULL && is_right());
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(60);
  for (int round = 0; round < 5; round++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      open_it(argv[1]);
      _exit(0);
    }
    reap(child, 0);
  }
  open_it(argv[1]);
  puts("ok");
  return 0;
}
