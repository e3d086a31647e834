/* Segments of System V that are removed while they are attached, and others that get their key.
 *
 *     segments make KEY       has several one after the other, says their numbers, and waits
 *     segments many KEY       has so many that some of their numbers would be one, if nobody saw to it
 *     segments use KEY ID...  attaches those, though but the last were removed
 *     segments strange ID     attaches what no --dsm of its own names */
#include "common.h"

#include <sys/ipc.h>
#include <sys/shm.h>

#define SIZE 5000
#define ALL 3
#define MANY 60

static struct shmid_ds about(int id) {
  struct shmid_ds about;
  CHECK(shmctl(id, IPC_STAT, &about) == 0);
  return about;
}

/* How the numbered one of them looks, and whether it was removed. */
static void check(key_t key, int id, int which, int users) {
  struct shmid_ds is = about(id);
  int is_removed = which < ALL - 1;
  CHECK(is.shm_segsz == (size_t)(which + 1) * SIZE && is.shm_nattch == (shmatt_t)users);
  CHECK(((is.shm_perm.mode & SHM_DEST) != 0) == is_removed);
  CHECK(is.shm_perm.__key == (is_removed ? IPC_PRIVATE : key));
}

static unsigned char *attach(int id) {
  unsigned char *at = shmat(id, NULL, 0);
  CHECK(at != (void *)-1);
  return at;
}

static int make(key_t key) {
  int ids[ALL];
  unsigned char *at[ALL];
  for (int i = 0; i < ALL; i++) {
    FAILS(shmget(key, 0, 0) < 0, ENOENT);
    ids[i] = shmget(key, (i + 1) * SIZE, IPC_CREAT | IPC_EXCL | 0600);
    CHECK(ids[i] >= 0 && shmget(key, 0, 0) == ids[i]);
    at[i] = attach(ids[i]);
    CHECK(at[i][0] == 0 && at[i][SIZE * (i + 1) - 1] == 0);
    at[i][0] = i + 1;
    for (int before = 0; before < i; before++)
      CHECK(ids[before] != ids[i]);
    if (i < ALL - 1)
      CHECK(shmctl(ids[i], IPC_RMID, NULL) == 0 && shmctl(ids[i], IPC_RMID, NULL) == 0);
  }
  for (int i = 0; i < ALL; i++)
    check(key, ids[i], i, 1);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < ALL; i++) {
      unsigned char *again = attach(ids[i]);
      CHECK(again[0] == i + 1 && at[i][0] == i + 1);
      again[1] = 20 + i;
      CHECK(shmdt(again) == 0 && shmdt(at[i]) == 0);
    }
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  for (int i = 0; i < ALL; i++)
    printf("%d ", ids[i]);
  say("");
  hear();
  for (int i = 0; i < ALL; i++) {
    CHECK(at[i][0] == i + 1 && at[i][1] == 20 + i && at[i][2] == 30 + i);
    /* Once more. */
    unsigned char *again = attach(ids[i]);
    CHECK(again != at[i] && again[2] == 30 + i);
    check(key, ids[i], i, 2);
    CHECK(shmdt(again) == 0 && shmdt(at[i]) == 0);
    if (i < ALL - 1) {
      FAILS(shmat(ids[i], NULL, 0) == (void *)-1, EIDRM);
      struct shmid_ds none;
      FAILS(shmctl(ids[i], IPC_STAT, &none) < 0, EIDRM);
    }
  }
  CHECK(shmctl(ids[ALL - 1], IPC_RMID, NULL) == 0);
  FAILS(shmget(key, 0, 0) < 0, ENOENT);
  return 0;
}

static int many(key_t key) {
  int ids[MANY];
  unsigned char *at[MANY];
  for (int i = 0; i < MANY; i++) {
    ids[i] = shmget(key, SIZE, IPC_CREAT | IPC_EXCL | 0600);
    CHECK(ids[i] >= 0);
    at[i] = attach(ids[i]);
    at[i][0] = i;
    CHECK(shmctl(ids[i], IPC_RMID, NULL) == 0);
    for (int before = 0; before < i; before++)
      CHECK(ids[before] != ids[i]);
  }
  for (int i = 0; i < MANY; i++) {
    unsigned char *again = attach(ids[i]);
    CHECK(again[0] == i && shmdt(again) == 0 && shmdt(at[i]) == 0);
  }
  return 0;
}

static int use(key_t key, char **numbers) {
  for (int i = 0; i < ALL; i++) {
    int id = atoi(numbers[i]);
    unsigned char *at = attach(id);
    CHECK(at[0] == i + 1 && at[1] == 20 + i);
    at[2] = 30 + i;
    check(key, id, i, 2);
    CHECK(shmdt(at) == 0);
  }
  CHECK(shmget(key, 0, 0) == atoi(numbers[ALL - 1]));
  /* A number of this key that no segment has. */
  int other = atoi(numbers[1]) ^ 0x100;
  if (other != atoi(numbers[0]) && other != atoi(numbers[2]))
    FAILS(shmat(other, NULL, 0) == (void *)-1, EIDRM);
  return 0;
}

static int strange(int id) {
  struct shmid_ds none;
  FAILS(shmat(id, NULL, 0) == (void *)-1, EIDRM);
  FAILS(shmctl(id, IPC_STAT, &none) < 0, EIDRM);
  /* One that is nobody's is the kernel's to refuse. */
  FAILS(shmat(0x7ffe0000, NULL, 0) == (void *)-1, EINVAL);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  if (strcmp(argv[1], "strange") == 0)
    return strange(atoi(argv[2]));
  key_t key = (key_t)strtoul(argv[2], NULL, 0);
  if (strcmp(argv[1], "make") == 0)
    return make(key);
  if (strcmp(argv[1], "many") == 0)
    return many(key);
  CHECK(argc == 3 + ALL);
  return use(key, argv + 3);
}
