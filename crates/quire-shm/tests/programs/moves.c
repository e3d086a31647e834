/* Increments a word of shared memory 1000 times, twice; between, its server may go. */
#include "common.h"

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int shared = shm_open(argv[1], O_RDWR, 0);
  CHECK(shared >= 0);
  uint64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
  CHECK(words != MAP_FAILED);
  uint64_t *word = words + atoi(argv[2]);
  for (int time = 0; time < 1000; time++)
    __atomic_add_fetch(word, 1, __ATOMIC_RELAXED);
  say("first");
  hear();
  uint64_t before = *word;
  for (int time = 0; time < 1000; time++)
    __atomic_add_fetch(word, 1, __ATOMIC_RELAXED);
  CHECK(*word == before + 1000);
  return 0;
}
