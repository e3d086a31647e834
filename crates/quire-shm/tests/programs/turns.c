/* Two processes that take turns by semaphores with names, which both of them make.
 *
 *     turns ME        with /turn-0 and /turn-1, ME being 0 or 1 */
#include "common.h"

#include <semaphore.h>

#define TURNS 100

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int me = atoi(argv[1]);
  sem_t *mine = sem_open(me ? "/turn-1" : "/turn-0", O_CREAT, 0600, me == 0);
  sem_t *other = sem_open(me ? "/turn-0" : "/turn-1", O_CREAT, 0600, me != 0);
  CHECK(mine != SEM_FAILED && other != SEM_FAILED && mine != other);
  for (int turn = 0; turn < TURNS; turn++)
    CHECK(sem_wait(mine) == 0 && sem_post(other) == 0);
  if (me == 1) {
    CHECK(sem_close(mine) == 0 && sem_close(other) == 0);
    return 0;
  }
  /* The other one has had its last turn. */
  CHECK(sem_wait(mine) == 0);
  FAILS(sem_trywait(mine) == -1, EAGAIN);
  CHECK(sem_open("/turn-0", 0) == mine && sem_close(mine) == 0);
  FAILS(sem_open("/turn-0", O_CREAT | O_EXCL, 0600, 1) == SEM_FAILED, EEXIST);
  FAILS(sem_open("/turn-2", O_CREAT, 0600, 0x80000000u) == SEM_FAILED, EINVAL);
  FAILS(sem_open("/turn-2", 0) == SEM_FAILED, ENOENT);
  /* A child has them, too. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    _exit(sem_post(mine) != 0 || sem_open("/turn-0", 0) != mine);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0 && sem_wait(mine) == 0);
  CHECK(sem_unlink("/turn-0") == 0 && sem_unlink("/turn-1") == 0);
  FAILS(sem_unlink("/turn-0") == -1, ENOENT);
  FAILS(sem_open("/turn-0", 0) == SEM_FAILED, ENOENT);
  CHECK(sem_post(mine) == 0 && sem_wait(mine) == 0 && sem_close(mine) == 0);
  /* One of another name is the kernel's. */
  sem_t *kernels = sem_open("/quire-turns", O_CREAT | O_EXCL, 0600, 1);
  CHECK(kernels != SEM_FAILED && sem_unlink("/quire-turns") == 0);
  CHECK(sem_wait(kernels) == 0 && sem_close(kernels) == 0);
  return 0;
}
