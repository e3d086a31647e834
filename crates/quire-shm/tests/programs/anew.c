/* Memory that is removed while it is used, and made anew by the same name: all of it goes on.
 *
 *     anew all NAME            has several that had the name, of several sizes, and so has a child
 *     anew see NAME            finds the one that has the name, and writes to it
 *     anew keep NAME           has the first one, while another program removes it and makes it anew
 *     anew remake NAME         is that one
 *     anew begun NAME ORDER    removes what has no size and begins it again; the old one gets its size
 *                              first (ORDER: old) or last (new)
 *     anew hand NAME ORDER     begins it, and removes it and begins it again when another one has found it
 *     anew look NAME ORDER     is that one; the old one gets its size here (ORDER: here) or there
 *     anew given NAME          a child gives a size to what was removed without one
 *     anew handed NAME         a child gives it a size, removes it and makes others by the name, before its
 *                              parent looks */
#include "common.h"

#define PAGE 4096
#define ALL 4
#define RW (PROT_READ | PROT_WRITE)

struct memory {
  int fd;
  size_t size;
  volatile unsigned char *at;
};

static size_t size_of(int fd) {
  struct stat about;
  CHECK(fstat(fd, &about) == 0);
  return about.st_size;
}

static void map(struct memory *memory) {
  CHECK(size_of(memory->fd) == memory->size);
  memory->at = mmap(NULL, memory->size, RW, MAP_SHARED, memory->fd, 0);
  CHECK(memory->at != MAP_FAILED);
}

static struct memory begin(const char *name, size_t pages) {
  struct memory memory = {.size = pages * PAGE};
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  memory.fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(memory.fd >= 0 && size_of(memory.fd) == 0);
  return memory;
}

static void give(struct memory *memory) {
  CHECK(ftruncate(memory->fd, memory->size) == 0);
  map(memory);
  for (size_t at = 0; at < memory->size; at++)
    CHECK(memory->at[at] == 0);
}

static struct memory find(const char *name, size_t pages) {
  struct memory memory = {.fd = shm_open(name, O_RDWR, 0), .size = pages * PAGE};
  CHECK(memory.fd >= 0);
  map(&memory);
  return memory;
}

static void end(struct memory *memory) {
  CHECK(munmap((void *)memory->at, memory->size) == 0 && close(memory->fd) == 0);
}

/* Each page begins with a value of its own. */
static void fill(struct memory *memory, unsigned char value) {
  for (size_t at = 0; at < memory->size; at += PAGE)
    memory->at[at] = value + at / PAGE;
}

static void check(const struct memory *memory, unsigned char value) {
  for (size_t at = 0; at < memory->size; at += PAGE)
    CHECK(memory->at[at] == value + at / PAGE);
}

static void await(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void all(const char *name) {
  struct memory all[ALL];
  for (int i = 0; i < ALL; i++) {
    all[i] = begin(name, i + 1);
    give(&all[i]);
    fill(&all[i], 10 * (i + 1));
    CHECK(i == ALL - 1 || shm_unlink(name) == 0);
  }
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < ALL; i++) {
      struct memory again = all[i];
      map(&again);
      check(&all[i], 10 * (i + 1));
      check(&again, 10 * (i + 1));
      fill(&again, 10 * (i + 1) + 100);
      end(&all[i]);
    }
    exit(0);
  }
  await(child);
  for (int i = 0; i < ALL; i++)
    check(&all[i], 10 * (i + 1) + 100);
  say("has all");
  hear();
  CHECK(all[ALL - 1].at[1] == 7);
  for (int i = 0; i < ALL - 1; i++) {
    CHECK(all[i].at[1] == 0);
    end(&all[i]);
    say("has one less");
    hear();
    for (int left = i + 1; left < ALL; left++)
      check(&all[left], 10 * (left + 1) + 100);
  }
  CHECK(shm_unlink(name) == 0);
  check(&all[ALL - 1], 10 * ALL + 100);
}

static void see(const char *name) {
  FAILS(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) < 0, EEXIST);
  struct memory memory = find(name, ALL);
  check(&memory, 10 * ALL + 100);
  memory.at[1] = 7;
}

static void keep(const char *name) {
  struct memory old = begin(name, 2);
  give(&old);
  fill(&old, 1);
  say("made");
  hear();
  struct memory new = find(name, 3);
  check(&old, 1);
  check(&new, 50);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check(&old, 1);
    check(&new, 50);
    old.at[1] = 2;
    new.at[1] = 3;
    exit(0);
  }
  await(child);
  CHECK(old.at[1] == 2 && new.at[1] == 3);
  say("has both");
  hear();
  /* The other one has gone, and removed the second, too. */
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  check(&old, 1);
  check(&new, 50);
  end(&new);
  say("closed");
  hear();
  check(&old, 1);
}

static void remake(const char *name) {
  struct memory old = find(name, 2);
  check(&old, 1);
  CHECK(shm_unlink(name) == 0);
  struct memory new = begin(name, 3);
  give(&new);
  fill(&new, 50);
  check(&old, 1);
  say("made anew");
  hear();
  CHECK(old.at[1] == 2 && new.at[1] == 3);
  end(&old);
  check(&new, 50);
  CHECK(shm_unlink(name) == 0);
}

static void begun(const char *name, const char *order) {
  struct memory old = begin(name, 2);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_unlink(name) < 0, ENOENT);
  struct memory new = begin(name, 3);
  int is_old_first = strcmp(order, "old") == 0;
  give(is_old_first ? &old : &new);
  CHECK(size_of(is_old_first ? new.fd : old.fd) == 0);
  give(is_old_first ? &new : &old);
  fill(&old, 1);
  fill(&new, 50);
  check(&old, 1);
  struct memory again = find(name, 3);
  check(&again, 50);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check(&old, 1);
    check(&new, 50);
    old.at[1] = 2;
    exit(0);
  }
  await(child);
  CHECK(old.at[1] == 2 && new.at[1] == 0);
  map(&old);
  check(&old, 1);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  check(&new, 50);
}

/* The other one has written to it when it goes on. */
static void give_to_the_other(struct memory *old) {
  give(old);
  fill(old, 1);
  say("given");
  hear();
  CHECK(old->at[0] == 2);
}

static void hand(const char *name, const char *order) {
  int is_given_here = strcmp(order, "here") != 0;
  struct memory old = begin(name, 2);
  say("begun");
  hear();
  CHECK(shm_unlink(name) == 0);
  struct memory new = begin(name, 3);
  say("begun again");
  hear();
  give(&new);
  fill(&new, 50);
  CHECK(size_of(old.fd) == 0);
  say("given");
  hear();
  if (is_given_here) {
    give_to_the_other(&old);
  } else {
    map(&old);
    check(&old, 1);
    old.at[0] = 2;
    say("seen");
    hear();
  }
  check(&new, 50);
  CHECK(shm_unlink(name) == 0);
}

static void look(const char *name, const char *order) {
  int is_given_here = strcmp(order, "here") == 0;
  struct memory old = {.fd = shm_open(name, O_RDWR, 0), .size = 2 * PAGE};
  CHECK(old.fd >= 0 && size_of(old.fd) == 0);
  say("open");
  hear();
  /* Another one has the name by now. */
  int begun = shm_open(name, O_RDWR, 0);
  CHECK(begun >= 0 && size_of(begun) == 0 && size_of(old.fd) == 0);
  say("looked");
  hear();
  CHECK(size_of(old.fd) == 0 && size_of(begun) == 3 * PAGE);
  struct memory new = find(name, 3);
  check(&new, 50);
  CHECK(size_of(old.fd) == 0);
  if (is_given_here) {
    give_to_the_other(&old);
  } else {
    say("looked");
    hear();
    map(&old);
    check(&old, 1);
    FAILS(ftruncate(old.fd, PAGE) < 0, EINVAL);
    old.at[0] = 2;
    say("seen");
    hear();
  }
  check(&new, 50);
}

static void given(const char *name) {
  struct memory old = begin(name, 2);
  CHECK(shm_unlink(name) == 0);
  struct memory new = begin(name, 3);
  int made[2], seen[2];
  char byte = 0;
  CHECK(pipe(made) == 0 && pipe(seen) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    give(&old);
    fill(&old, 1);
    give(&new);
    fill(&new, 50);
    CHECK(write(made[1], &byte, 1) == 1 && read(seen[0], &byte, 1) == 1);
    exit(0);
  }
  CHECK(read(made[0], &byte, 1) == 1);
  map(&old);
  map(&new);
  CHECK(write(seen[1], &byte, 1) == 1);
  await(child);
  check(&old, 1);
  check(&new, 50);
  CHECK(shm_unlink(name) == 0);
}

static void handed(const char *name) {
  struct memory old = begin(name, 2), next[2];
  int made[2], seen[2];
  char byte = 0;
  CHECK(pipe(made) == 0 && pipe(seen) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    give(&old);
    fill(&old, 1);
    for (int i = 0; i < 2; i++) {
      CHECK(shm_unlink(name) == 0);
      next[i] = begin(name, 2);
      give(&next[i]);
      fill(&next[i], 50 * (i + 1));
    }
    CHECK(write(made[1], &byte, 1) == 1 && read(seen[0], &byte, 1) == 1);
    exit(0);
  }
  CHECK(read(made[0], &byte, 1) == 1);
  map(&old);
  check(&old, 1);
  next[1] = find(name, 2);
  check(&next[1], 100);
  fill(&old, 7);
  CHECK(write(seen[1], &byte, 1) == 1);
  await(child);
  check(&old, 7);
  check(&next[1], 100);
  CHECK(shm_unlink(name) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *what = argv[1], *name = argv[2];
  if (strcmp(what, "all") == 0)
    all(name);
  else if (strcmp(what, "see") == 0)
    see(name);
  else if (strcmp(what, "keep") == 0)
    keep(name);
  else if (strcmp(what, "remake") == 0)
    remake(name);
  else if (strcmp(what, "handed") == 0)
    handed(name);
  else if (strcmp(what, "begun") == 0)
    begun(name, argv[3]);
  else if (strcmp(what, "hand") == 0)
    hand(name, argv[3]);
  else if (strcmp(what, "look") == 0)
    look(name, argv[3]);
  else
    given(name);
  return 0;
}
