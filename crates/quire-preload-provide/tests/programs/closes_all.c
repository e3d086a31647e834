/* One thread closes all descriptors, again and again, and opens files of its own, while another maps, fills, moves and
 * frees memory: each file stays what it is, and children are left nothing. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static volatile int ends;

static void *work(void *unused) {
  for (unsigned round = 0; !ends; round++) {
    size_t size = MIB(2 + round % 15);
    char *memory = map_anon(size);
    stamp_range(memory, size, round);
    memory = mremap(memory, size, size + MIB(4), MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    CHECK(madvise(memory + size, MIB(1), MADV_DONTNEED) == 0);
    CHECK(mprotect(memory + size, MIB(1), PROT_READ) == 0);
    check_range(memory, size, round);
    CHECK(munmap(memory, size + MIB(4)) == 0);
    char *heap = malloc(MIB(9));
    CHECK(heap != NULL);
    memset(heap, (int)round, MIB(9));
    CHECK(heap[77] == (char)round);
    free(heap);
  }
  return unused;
}

int main(void) {
  syscall(SYS_close_range, 3, ~0U, 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
  for (unsigned round = 0; round < 2000; round++) {
    if (round & 1)
      syscall(SYS_close_range, 3, ~0U, 0);
    else
      for (int fd = 3; fd < 100; fd++)
        close(fd);
    int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY);
    /* Nobody else has one, so these are the first. */
    CHECK(null == 3 && zero == 4);
    char byte = 9;
    CHECK(read(zero, &byte, 1) == 1 && byte == 0);
    CHECK(write(null, "x", 1) == 1 && read(null, &byte, 1) == 0);
    CHECK(close(null) == 0 && close(zero) == 0);
    if (round % 250 == 0) {
      pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        for (int fd = 3; fd < 1024; fd++)
          CHECK(fcntl(fd, F_GETFD) < 0);
        _exit(0);
      }
      reap(child, 0);
    }
    usleep(200);
  }
  ends = 1;
  CHECK(pthread_join(thread, NULL) == 0);
  puts("ok");
  return 0;
}
