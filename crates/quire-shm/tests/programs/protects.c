/* Changes what pages of an object allow, again and again, while its server is killed and started anew.
 *
 *     protects NAME   says "begins", and ends at a line
 *
 * Built with C_INTERFACE, NAME is a server's address, and the object is opened there. */
#include "common.h"

#ifdef C_INTERFACE
#include <quire_dsm.h>
#endif

#include <pthread.h>
#include <stdatomic.h>

#define PAGE 4096
#define THREADS 4
#define EACH 4
#define SIZE (THREADS * EACH * PAGE)

static atomic_int ends;
/* Each page is a mapping of its own, which is replaced for itself. */
static unsigned char *pages[THREADS * EACH];

#ifdef C_INTERFACE
static void map(const char *name) {
  quire_dsm *server = quire_dsm_connect(name, NULL);
  CHECK(server != NULL && quire_dsm_create(server, "grid", SIZE, NULL) == 0);
  quire_dsm_object *object = quire_dsm_open(server, "grid", QUIRE_DSM_WRITE);
  CHECK(object != NULL);
  for (int page = 0; page < THREADS * EACH; page++) {
    pages[page] = quire_dsm_map(object, page * PAGE, PAGE, NULL);
    CHECK(pages[page] != NULL);
  }
}
#else
static void map(const char *name) {
  int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  unsigned char *memory = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  for (int page = 0; page < THREADS * EACH; page++) {
    pages[page] = memory + page * PAGE;
    int fixed = MAP_SHARED | MAP_FIXED, both = PROT_READ | PROT_WRITE;
    CHECK(mmap(pages[page], PAGE, both, fixed, fd, page * PAGE) == pages[page]);
  }
}
#endif

/* What a page allows is what it was told last. */
static void *change(void *first) {
  int zeros = open("/dev/zero", O_RDONLY);
  CHECK(zeros >= 0);
  while (!ends) {
    for (int page = 0; page < EACH; page++) {
      unsigned char *at = ((unsigned char **)first)[page];
      CHECK(mprotect(at, PAGE, PROT_READ) == 0);
      FAILS(read(zeros, at + 1, 1) < 0, EFAULT);
      /* A write would wait for the server. */
      CHECK(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0);
    }
  }
  CHECK(read(zeros, *(unsigned char **)first + 1, 1) == 1);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  map(argv[1]);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, change, &pages[i * EACH]) == 0);
  say("begins");
  hear();
  ends = 1;
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  return 0;
}
