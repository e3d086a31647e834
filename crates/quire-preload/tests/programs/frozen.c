/* Threads that use memory, also by system calls that write to what nobody has touched yet, until a file `stop` is
 * there.  The test freezes the group of the process meanwhile. */
#include "promise.h"
#include <pthread.h>

static volatile int stop;
static volatile long rounds;

static void *use(void *unused) {
  int zeros = open("/dev/zero", O_RDONLY), own = open("/proc/self/exe", O_RDONLY);
  CHECK(zeros >= 0 && own >= 0);
  while (!stop) {
    char *memory = map_anon(MIB(8));
    for (size_t at = 0; at < MIB(8); at += 65536)
      for (size_t done = 0; done < 60000;) {
        ssize_t got = read(zeros, memory + at + done, 60000 - done);
        CHECK(got > 0 || (got < 0 && errno == EINTR));
        done += got > 0 ? (size_t)got : 0;
      }
    CHECK(pread(own, memory + 100000, 4000, 0) == 4000 && memory[100001] == 'E');
    CHECK(munmap(memory, MIB(8)) == 0);
    rounds++;
  }
  return unused;
}

int main(void) {
  pthread_t threads[3];
  char *memory = grow_up();
  for (int i = 0; i < 3; i++)
    CHECK(pthread_create(threads + i, NULL, use, NULL) == 0);
  double begin = seconds();
  while (access("stop", F_OK) != 0 && seconds() - begin < 40)
    sleep_ms(20);
  stop = 1;
  for (int i = 0; i < 3; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  check_range(memory, MIB(96), 1);
  CHECK(rounds > 0);
  puts("frozen ok");
  return 0;
}
