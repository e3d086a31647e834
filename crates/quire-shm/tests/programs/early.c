/* Shared memory that is asked for before the program begins: by the constructor of a library that
 * it is linked with (-DLIBRARY).
 *
 *     early */
#include "common.h"

#include <sys/shm.h>

#define SIZE 4096
#define KEY 0x1234

extern unsigned char *early_posix, *early_sysv;

#ifdef LIBRARY
unsigned char *early_posix, *early_sysv;

__attribute__((constructor)) static void first(void) {
  int fd = shm_open("/grid", O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  early_posix = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(early_posix != MAP_FAILED && close(fd) == 0);
  int segment = shmget(KEY, SIZE, IPC_CREAT | IPC_EXCL | 0600);
  CHECK(segment >= 0);
  early_sysv = shmat(segment, NULL, 0);
  CHECK(early_sysv != (void *)-1);
  early_posix[0] = 'p';
  early_sysv[0] = 's';
}
#else
int main(void) {
  /* The C library takes any number of slashes. */
  int fd = shm_open("///grid", O_RDWR, 0);
  CHECK(fd >= 0);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED && at[0] == 'p');
  at[1] = 'q';
  CHECK(early_posix[1] == 'q');
  at = shmat(shmget(KEY, SIZE, 0), NULL, 0);
  CHECK(at != (void *)-1 && at[0] == 's');
  at[1] = 't';
  CHECK(early_sysv[1] == 't');
  return 0;
}
#endif
