/* Adds one to a word of shared memory again and again, and prints it.
 *
 *     counter NAME TIMES */
#include "common.h"

#include <stdatomic.h>

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
  _Atomic long *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(word != MAP_FAILED);
  for (long left = atol(argv[2]); left > 0; left--)
    atomic_fetch_add(word, 1);
  printf("%ld\n", atomic_load(word));
  return 0;
}
