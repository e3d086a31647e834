/* Shared memory of System V, as any program uses it.
 *
 *     sysv make KEY   makes it, writes, waits, and reads what the other wrote
 *     sysv use KEY    finds it, reads, and writes
 *     sysv other KEY  a key that is nobody's object, and memory without a key */
#include "common.h"

#include <sys/ipc.h>
#include <sys/shm.h>

#define SIZE 50000

static int make(key_t key) {
  struct shmid_ds about;
  FAILS(shmget(key, SIZE, 0600) < 0, ENOENT);
  int id = shmget(key, SIZE, IPC_CREAT | IPC_EXCL | 0600);
  CHECK(id >= 0);
  FAILS(shmget(key, SIZE, IPC_CREAT | IPC_EXCL | 0600) < 0, EEXIST);
  FAILS(shmget(key, 2 * SIZE, 0600) < 0, EINVAL);
  CHECK(shmget(key, 0, 0) == id);
  CHECK(shmctl(id, IPC_STAT, &about) == 0);
  CHECK(about.shm_segsz == SIZE && about.shm_nattch == 0);
  unsigned char *at = shmat(id, NULL, 0);
  CHECK(at != (void *)-1);
  const unsigned char *read_only = shmat(id, NULL, SHM_RDONLY);
  CHECK(read_only != (void *)-1 && read_only != at);
  CHECK(shmctl(id, IPC_STAT, &about) == 0 && about.shm_nattch == 2);
  for (int i = 0; i < SIZE; i++) {
    CHECK(at[i] == 0);
    at[i] = i % 251;
  }
  CHECK(read_only[1000] == 1000 % 251);
  FAILS(mprotect((void *)read_only, 4096, PROT_WRITE) < 0, EACCES);
  say("made");
  hear();
  for (int i = 0; i < SIZE; i++)
    CHECK(read_only[i] == 255 - i % 251);
  CHECK(shmdt(read_only) == 0);
  FAILS(shmdt(read_only) < 0, EINVAL);
  /* At an address of the program's choice. */
  unsigned char *wanted = (unsigned char *)0x520000000000;
  CHECK(shmat(id, wanted + 100, SHM_RND) == wanted);
  CHECK(wanted[7] == 255 - 7);
  FAILS(shmat(id, wanted + 100, 0) == (void *)-1, EINVAL);
  FAILS(shmctl(id, IPC_SET, &about) < 0, EINVAL);
  CHECK(shmdt(wanted) == 0 && shmdt(at) == 0);
  CHECK(shmctl(id, IPC_RMID, NULL) == 0);
  FAILS(shmget(key, SIZE, 0600) < 0, ENOENT);
  return 0;
}

static int use(key_t key) {
  struct shmid_ds about;
  int id = shmget(key, SIZE, 0600);
  CHECK(id >= 0);
  unsigned char *at = shmat(id, NULL, 0);
  CHECK(at != (void *)-1);
  CHECK(shmctl(id, IPC_STAT, &about) == 0);
  /* This one, and the other program. */
  CHECK(about.shm_nattch == 2);
  for (int i = 0; i < SIZE; i++) {
    CHECK(at[i] == i % 251);
    at[i] = 255 - i % 251;
  }
  CHECK(shmdt(at) == 0);
  return 0;
}

static void kernels(int id) {
  CHECK(id >= 0);
  struct shmid_ds about;
  CHECK(shmctl(id, IPC_STAT, &about) == 0 && about.shm_cpid == getpid());
  unsigned char *at = shmat(id, NULL, 0);
  CHECK(at != (void *)-1);
  at[1] = 1;
  CHECK(shmdt(at) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  key_t key = (key_t)strtoul(argv[2], NULL, 0);
  if (strcmp(argv[1], "make") == 0)
    return make(key);
  if (strcmp(argv[1], "use") == 0)
    return use(key);
  kernels(shmget(key, SIZE, IPC_CREAT | IPC_EXCL | 0600));
  kernels(shmget(IPC_PRIVATE, SIZE, 0600));
  return 0;
}
