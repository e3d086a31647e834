/* A semaphore with a name that is removed while somebody waits for it, and another one of that name.
 *
 *     named make     has both, with a child that waits for the old one
 *     named use      finds the new one, and posts to it */
#include "common.h"

#include <semaphore.h>

#define NAME "/turn"

static int value_of(sem_t *semaphore) {
  int value;
  CHECK(sem_getvalue(semaphore, &value) == 0);
  return value;
}

static int wait_for_old(sem_t *old, int ready) {
  CHECK(write(ready, "", 1) == 1 && sem_wait(old) == 0);
  /* What has the name now is another one, for who has the old one, too. */
  sem_t *new = sem_open(NAME, O_CREAT, 0600, 9);
  CHECK(new != SEM_FAILED && new != old);
  CHECK(value_of(new) == 3 && value_of(old) == 0);
  CHECK(sem_wait(new) == 0 && sem_post(old) == 0);
  return 0;
}

static int make(void) {
  int ready[2];
  char byte;
  sem_t *old = sem_open(NAME, O_CREAT | O_EXCL, 0600, 0);
  CHECK(old != SEM_FAILED && pipe(ready) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    exit(wait_for_old(old, ready[1]));
  CHECK(read(ready[0], &byte, 1) == 1 && usleep(50000) == 0);
  CHECK(sem_unlink(NAME) == 0);
  FAILS(sem_unlink(NAME) == -1, ENOENT);
  FAILS(sem_open(NAME, 0) == SEM_FAILED, ENOENT);
  sem_t *new = sem_open(NAME, O_CREAT | O_EXCL, 0600, 3);
  CHECK(new != SEM_FAILED && new != old);
  FAILS(sem_open(NAME, O_CREAT | O_EXCL, 0600, 3) == SEM_FAILED, EEXIST);
  CHECK(sem_open(NAME, 0) == new && sem_close(new) == 0);
  CHECK(value_of(new) == 3 && value_of(old) == 0);
  CHECK(sem_post(old) == 0);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(value_of(new) == 2 && sem_wait(old) == 0);
  say("has both");
  hear();
  CHECK(value_of(new) == 3 && value_of(old) == 0);
  CHECK(sem_post(old) == 0 && sem_trywait(old) == 0 && sem_close(old) == 0);
  CHECK(sem_open(NAME, 0) == new && sem_close(new) == 0 && value_of(new) == 3);
  say("closed");
  hear();
  CHECK(sem_unlink(NAME) == 0 && sem_close(new) == 0);
  return 0;
}

static int use(void) {
  sem_t *new = sem_open(NAME, 0);
  CHECK(new != SEM_FAILED && value_of(new) == 2);
  CHECK(sem_post(new) == 0 && sem_close(new) == 0);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  return strcmp(argv[1], "make") == 0 ? make() : use();
}
