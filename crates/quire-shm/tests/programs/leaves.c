/* Lets go of its standard streams while it has the memory.
 *
 *     leaves daemon NAME       becomes a daemon, and lives on for some time
 *     leaves other NAME FILE   opens a file in the place of standard error, and does what
 *                              gets a line in the log */
#include "common.h"

#define SIZE 4096

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  int fd = shm_open(argv[2], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  FAILS(ftruncate(fd, 2 * SIZE) < 0, EINVAL);
  if (strcmp(argv[1], "daemon") == 0) {
    say("started");
    CHECK(daemon(0, 0) == 0);
    at[0] = 1;
    sleep(12);
    return 0;
  }
  CHECK(argc == 4 && close(2) == 0);
  CHECK(open(argv[3], O_CREAT | O_WRONLY, 0600) == 2);
  FAILS(ftruncate(fd, 2 * SIZE) < 0, EINVAL);
  /* Lines of a log are appended. */
  CHECK(write(2, "data\n", 5) == 5 && fcntl(2, F_SETFL, O_APPEND) == 0);
  FAILS(ftruncate(fd, 3 * SIZE) < 0, EINVAL);
  return 0;
}
