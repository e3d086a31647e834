/* A program that may read an object does not make its memory writable.
 *
 *     readers SERVER */
#include "common.h"

#include <quire_dsm.h>

#define PAGE 4096
#define SIZE (4 * PAGE)

enum { READ = PROT_READ, BOTH = PROT_READ | PROT_WRITE };

static void may_not_be_written(void *at, size_t size) {
  FAILS(mprotect(at, size, BOTH) < 0, EACCES);
  FAILS(mprotect((char *)at - PAGE, 2 * PAGE, PROT_WRITE) < 0, EACCES);
  FAILS(pkey_mprotect(at, PAGE, BOTH, -1) < 0, EACCES);
  CHECK(mprotect(at, PAGE, PROT_NONE) == 0 && mprotect(at, PAGE, READ) == 0);
  CHECK(*(char *)at == 'a');
}

/* Something else of the program's. */
static void may_be_written(char *at, size_t size) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  CHECK(mmap(at, size, READ, flags, -1, 0) == at);
  CHECK(mprotect(at, size, BOTH) == 0);
  at[0] = 'x';
  CHECK(munmap(at, size) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  quire_dsm *server = quire_dsm_connect(argv[1], NULL);
  CHECK(server != NULL && quire_dsm_create(server, "grid", SIZE, NULL) == 0);
  quire_dsm_object *writer = quire_dsm_open(server, "grid", QUIRE_DSM_WRITE);
  quire_dsm_object *reader = quire_dsm_open(server, "grid", QUIRE_DSM_READ);
  CHECK(writer != NULL && reader != NULL);
  char *written = quire_dsm_address(writer);
  memset(written, 'a', SIZE);

  char *read = quire_dsm_address(reader), *part = quire_dsm_map(reader, PAGE, PAGE, NULL);
  CHECK(part != NULL);
  may_not_be_written(read, SIZE);
  may_not_be_written(part, PAGE);
  CHECK(mprotect(written, SIZE, READ) == 0 && mprotect(written, SIZE, BOTH) == 0);
  written[0] = 'b';
  CHECK(read[0] == 'b');

  /* A child does not have the memory. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    may_be_written(read, SIZE);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);

  CHECK(quire_dsm_unmap(reader, part) == 0 && quire_dsm_close(reader) == 0);
  may_be_written(part, PAGE);
  may_be_written(read, SIZE);
  CHECK(quire_dsm_close(writer) == 0);
  quire_dsm_disconnect(server);
  return 0;
}
