/* A program that writes all of an object, and ends.
 *
 *     fills NAME SIZE */
#include "common.h"

#include <string.h>

int main(int argc, char **argv) {
  CHECK(argc == 3);
  size_t size = atol(argv[2]);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, size) == 0);
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 'x', size);
  return 0;
}
