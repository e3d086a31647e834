/* Names of memory that has no size yet, which programs share that have nothing else in common.
 *
 *     begun begin NAME        makes it; when it is told to, gives it a size and a seven, then ends
 *     begun join NAME         finds it without a size, waits for that and the seven, and removes it
 *     begun give NAME         finds it without a size, and gives it one and the seven
 *     begun remove NAME       removes what has no size, and makes another one of the name
 *     begun drop NAME         removes memory that others have, and uses it until it is told to be killed
 *     begun gone NAME         finds nothing that others have removed, makes its own, and removes that
 *     begun lock NAME FILE    adds to the number in a file, many times; to have made the memory is the lock */
#include "common.h"

#include <signal.h>

#define SIZE 8192
#define ROUNDS 40
#define RW (PROT_READ | PROT_WRITE)

static long size_of(int fd) {
  struct stat about;
  CHECK(fstat(fd, &about) == 0);
  return about.st_size;
}

static volatile unsigned char *map(int fd) {
  void *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static int make(const char *name) {
  return shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
}

static int find(const char *name) {
  FAILS(make(name) < 0, EEXIST);
  int fd = shm_open(name, O_RDWR, 0);
  CHECK(fd >= 0 && size_of(fd) == 0);
  FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0) == MAP_FAILED, ENXIO);
  return fd;
}

static void give(int fd) {
  CHECK(ftruncate(fd, SIZE) == 0 && size_of(fd) == SIZE);
  map(fd)[1] = 7;
}

static void await(int fd) {
  for (int i = 0; size_of(fd) == 0; i++)
    CHECK(i < 20000 && usleep(1000) == 0);
  volatile unsigned char *at = map(fd);
  for (int i = 0; at[1] != 7; i++)
    CHECK(i < 20000 && usleep(1000) == 0);
}

static void begin(const char *name) {
  int fd = make(name);
  CHECK(fd >= 0);
  say("begun");
  hear();
  /* Somebody else may have done so. */
  give(fd);
}

static void join(const char *name) {
  int fd = find(name);
  say("open");
  await(fd);
  CHECK(shm_unlink(name) == 0);
}

static void remove_it(const char *name) {
  int old = find(name);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_unlink(name) < 0, ENOENT);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  int fd = make(name);
  CHECK(fd >= 0 && size_of(old) == 0);
  give(fd);
  CHECK(size_of(old) == 0 && shm_unlink(name) == 0);
}

static void gone(const char *name) {
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  FAILS(shm_unlink(name) < 0, ENOENT);
  int fd = make(name);
  CHECK(fd >= 0 && size_of(fd) == 0 && ftruncate(fd, SIZE / 2) == 0);
  CHECK(size_of(fd) == SIZE / 2 && shm_unlink(name) == 0 && close(fd) == 0);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
}

static void drop(const char *name) {
  int fd = shm_open(name, O_RDWR, 0);
  CHECK(fd >= 0);
  volatile unsigned char *at = map(fd);
  CHECK(shm_unlink(name) == 0);
  gone(name);
  CHECK(at[1] == 9 && size_of(fd) == SIZE && ftruncate(fd, SIZE) == 0);
  say("removed");
  hear();
  CHECK(at[1] == 9);
  kill(getpid(), SIGKILL);
}

static long read_number(const char *path) {
  long number;
  FILE *file = fopen(path, "r");
  CHECK(file != NULL && fscanf(file, "%ld", &number) == 1 && fclose(file) == 0);
  return number;
}

static void lock(const char *name, const char *path) {
  for (int round = 0; round < ROUNDS; round++) {
    int fd;
    for (int i = 0; (fd = make(name)) < 0; i++)
      CHECK(errno == EEXIST && i < 20000 && usleep(100) == 0);
    long number = read_number(path);
    if (round % 2 == 0)
      CHECK(ftruncate(fd, SIZE) == 0);
    usleep(200);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, "%ld\n", number + 1) > 0 && fclose(file) == 0);
    CHECK(close(fd) == 0 && shm_unlink(name) == 0);
  }
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *what = argv[1], *name = argv[2];
  if (strcmp(what, "begin") == 0)
    begin(name);
  else if (strcmp(what, "join") == 0)
    join(name);
  else if (strcmp(what, "give") == 0)
    give(find(name));
  else if (strcmp(what, "remove") == 0)
    remove_it(name);
  else if (strcmp(what, "drop") == 0)
    drop(name);
  else if (strcmp(what, "gone") == 0)
    gone(name);
  else
    lock(name, argv[3]);
  return 0;
}
