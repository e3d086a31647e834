/* Removes names of objects that others made.
 *
 *     keeps unlink NAME     opens it, reads a nine, and removes its name
 *     keeps remake NAME     the same, and makes another one by the name: the old one is gone then
 *     keeps own NAME        makes one, and has another program remove it
 *     keeps remove NAME     is that one
 *     keeps make-semaphore NAME     makes a semaphore with the value 3
 *     keeps semaphore NAME          prints its value, and removes its name
 *     keeps remake-semaphore NAME   removes its name, and makes another one with the value 5
 *     keeps own-semaphore NAME      makes one with another name, and removes it */
#include "common.h"

#include <fcntl.h>
#include <semaphore.h>

static int make_semaphore(const char *name, unsigned value) {
  return sem_open(name, O_CREAT | O_EXCL, 0600, value) == SEM_FAILED;
}

static int semaphore(const char *name) {
  int value = -1;
  sem_t *it = sem_open(name, 0);
  CHECK(it != SEM_FAILED && sem_getvalue(it, &value) == 0 && sem_unlink(name) == 0);
  printf("%d\n", value);
  return 0;
}

static int own_semaphore(const char *name) {
  char own[100];
  snprintf(own, sizeof own, "%s-own", name);
  CHECK(make_semaphore(own, 1) == 0 && sem_unlink(own) == 0);
  FAILS(sem_open(own, 0) == SEM_FAILED, ENOENT);
  return 0;
}

static unsigned char *map(int fd) {
  unsigned char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static unsigned char *theirs(const char *name) {
  int fd = shm_open(name, O_RDWR, 0);
  CHECK(fd >= 0);
  unsigned char *at = map(fd);
  CHECK(at[1] == 9 && close(fd) == 0 && shm_unlink(name) == 0);
  return at;
}

static int remake(const char *name) {
  unsigned char *old = theirs(name);
  /* Others have it still. */
  FAILS(shm_open("/grid-other", O_RDWR, 0) == -1, ENOENT);
  int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
  unsigned char *new = map(fd);
  CHECK(new[1] == 0 && old[1] == 9);
  new[1] = 8;
  CHECK(old[1] == 9);
  FAILS(shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600) == -1, EEXIST);
  return 0;
}

static int own(const char *self, const char *name) {
  int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, 4096) == 0 && close(fd) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl(self, self, "remove", name, NULL);
    _exit(9);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  FAILS(shm_open(name, O_RDWR, 0) == -1, ENOENT);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  const char *what = argv[1], *name = argv[2];
  if (strcmp(what, "unlink") == 0)
    return theirs(name)[1] != 9;
  if (strcmp(what, "remake") == 0)
    return remake(name);
  if (strcmp(what, "make-semaphore") == 0)
    return make_semaphore(name, 3);
  if (strcmp(what, "semaphore") == 0)
    return semaphore(name);
  if (strcmp(what, "remake-semaphore") == 0)
    return sem_unlink(name) != 0 || make_semaphore(name, 5);
  if (strcmp(what, "own-semaphore") == 0)
    return own_semaphore(name);
  if (strcmp(what, "own") == 0)
    return own(argv[0], name);
  CHECK(shm_unlink(name) == 0);
  return 0;
}
