/* What a program may do to a mapping after it made it: grow, shrink, move,
 * punch holes, protect, empty and replace parts; with the contents, the
 * signals and the error numbers that the kernel gives for private anonymous
 * memory.  Arguments: largest MiB. */
#include "faults.h"
#include <fcntl.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

static void growth(size_t largest) {
  size_t size = MIB(2);
  char *memory = map_anon(size);
  stamp_range(memory, size, 1);
  while (size < largest) {
    size_t more = size + size / 2 / PAGE * PAGE + PAGE * 3;
    memory = mremap(memory, size, more, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    check_range(memory, size, 1);
    check_zero_range(memory + size, more - size);
    stamp_range(memory + size, more - size, 1 + size / PAGE);
    size = more;
  }
  while (size > MIB(1)) {
    size_t less = size / 2 / PAGE * PAGE;
    CHECK(mremap(memory, size, less, 0) == memory);
    CHECK_FAULT(memory + less, 0, SEGV_MAPERR);
    size = less;
    check_range(memory, size, 1);
  }
  CHECK(munmap(memory, size) == 0);
  puts("growth ok");
}

static void moves(void) {
  size_t size = MIB(8);
  char *from = map_anon(size), *place = map_anon(MIB(32));
  stamp_range(from, size, 10);
  stamp_range(place, MIB(32), 100000);
  char *to = place + MIB(7) + 3 * PAGE; /* not aligned as the source is */
  CHECK(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  CHECK_FAULT(from, 0, SEGV_MAPERR);
  check_range(to, size, 10);
  check_range(place, MIB(7) + 3 * PAGE, 100000);
  check_range(to + size, MIB(17) - 3 * PAGE, 100000 + MIB(15) / PAGE + 3);
  /* A part out of the middle, and it grows on the way. */
  char *part = mremap(to + MIB(2), MIB(3), MIB(9), MREMAP_MAYMOVE);
  CHECK(part != MAP_FAILED && part != to + MIB(2));
  check_range(part, MIB(3), 10 + MIB(2) / PAGE);
  check_zero_range(part + MIB(3), MIB(6));
  CHECK_FAULT(to + MIB(2), 1, SEGV_MAPERR);
  CHECK_FAULT(to + MIB(5) - PAGE, 0, SEGV_MAPERR);
  check_range(to, MIB(2), 10);
  check_range(to + MIB(5), MIB(3), 10 + MIB(5) / PAGE);

  /* The old place stays mapped and is empty. */
  char *kept = part;
  char *moved = mremap(kept, MIB(9), MIB(9), MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
  CHECK(moved != MAP_FAILED && moved != kept);
  check_range(moved, MIB(3), 10 + MIB(2) / PAGE);
  check_zero_range(kept, MIB(9));
  stamp_range(kept, MIB(9), 7);
  check_range(moved, MIB(3), 10 + MIB(2) / PAGE);
  check_range(kept, MIB(9), 7);
  CHECK(munmap(kept, MIB(9)) == 0 && munmap(moved, MIB(9)) == 0 && munmap(place, MIB(32)) == 0);
  puts("moves ok");
}

static void in_place(void) {
  char *place = mmap(NULL, MIB(64), PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
  CHECK(place != MAP_FAILED);
  char *memory = mmap(place, MIB(8), RW, ANON | MAP_FIXED, -1, 0);
  CHECK(memory == place);
  stamp_range(memory, MIB(8), 3);
  CHECK_ERRNO(mremap(memory, MIB(8), MIB(16), 0), ENOMEM);
  check_range(memory, MIB(8), 3);
  CHECK(munmap(memory + MIB(8), MIB(56)) == 0);
  CHECK(mremap(memory, MIB(8), MIB(24), 0) == memory);
  check_range(memory, MIB(8), 3);
  check_zero_range(memory + MIB(8), MIB(16));
  CHECK(munmap(memory, MIB(24)) == 0);
  puts("in place ok");
}

static void holes(void) {
  char *memory = map_anon(MIB(32));
  stamp_range(memory, MIB(32), 1);
  struct {
    size_t start, length;
  } holes[] = {
      {MIB(3), PAGE}, {MIB(8), MIB(2)}, {MIB(13) + PAGE * 7, MIB(4)}, {MIB(32) - PAGE, PAGE}, {0, PAGE * 2}};
  for (unsigned i = 0; i < 5; i++) {
    char *hole = memory + holes[i].start;
    CHECK(munmap(hole, holes[i].length) == 0);
    CHECK_FAULT(hole, 0, SEGV_MAPERR);
    CHECK_FAULT(hole + holes[i].length - 1, 1, SEGV_MAPERR);
    CHECK(munmap(hole, holes[i].length) == 0); /* again is no error */
    unsigned char resident;
    CHECK_ERRNO(mincore(hole, PAGE, &resident), ENOMEM);
    CHECK_ERRNO(mprotect(hole, PAGE, RW), ENOMEM);
    CHECK_ERRNO(madvise(hole, PAGE, MADV_DONTNEED), ENOMEM);
  }
  for (size_t i = 0; i < MIB(32) / PAGE; i++) {
    int gone = 0;
    for (unsigned k = 0; k < 5; k++)
      gone |= i * PAGE >= holes[k].start && i * PAGE < holes[k].start + holes[k].length;
    if (!gone)
      CHECK_STAMP(memory + i * PAGE, 1 + i);
  }
  pid_t child = fork(); /* the child has the same holes */
  CHECK(child >= 0);
  if (child == 0) {
    for (unsigned i = 0; i < 5; i++)
      CHECK_FAULT(memory + holes[i].start, 0, SEGV_MAPERR);
    CHECK_STAMP(memory + MIB(3) + PAGE, 2 + MIB(3) / PAGE);
    _exit(0);
  }
  reap(child, 0);
  /* A hole is filled again, exactly there, with zeros. */
  char *fill = mmap(memory + MIB(8), MIB(2), RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(fill == memory + MIB(8));
  check_zero_range(fill, MIB(2));
  stamp_range(fill, MIB(2), 9);
  CHECK_STAMP(fill - PAGE, MIB(8) / PAGE);
  check_range(fill, MIB(2), 9);
  CHECK(munmap(memory, MIB(32)) == 0);
  for (size_t offset = 0; offset < MIB(32); offset += MIB(1))
    CHECK_FAULT(memory + offset, 0, SEGV_MAPERR);
  puts("holes ok");
}

static void protection(void) {
  char *memory = map_anon(MIB(16));
  stamp_range(memory, MIB(8), 1);
  char *middle = memory + MIB(4) - PAGE;
  size_t length = MIB(8); /* half of it was never touched */
  CHECK(mprotect(middle, length, PROT_READ) == 0);
  CHECK_FAULT(middle, 1, SEGV_ACCERR);
  CHECK_FAULT(middle + length - 1, 1, SEGV_ACCERR);
  CHECK_NO_FAULT(middle - 1, 1);
  CHECK_NO_FAULT(middle + length, 1);
  check_range(memory, MIB(8), 1);
  check_zero_range(memory + MIB(8), MIB(8));
  CHECK(mprotect(middle + MIB(1), MIB(2), PROT_NONE) == 0);
  CHECK_FAULT(middle + MIB(1), 0, SEGV_ACCERR);
  CHECK_FAULT(middle + MIB(3) - 1, 1, SEGV_ACCERR);
  int ends[2]; /* the kernel keeps to the protection too */
  CHECK(pipe(ends) == 0 && write(ends[1], "abc", 3) == 3);
  CHECK_ERRNO(read(ends[0], middle, 3), EFAULT);
  CHECK_ERRNO(write(ends[1], middle + MIB(1), 3), EFAULT);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_FAULT(middle + MIB(1), 0, SEGV_ACCERR);
    CHECK_FAULT(middle, 1, SEGV_ACCERR);
    CHECK_STAMP(middle, MIB(4) / PAGE);
    CHECK(mprotect(middle, length, RW) == 0);
    check_range(memory, MIB(8), 1);
    stamp_range(memory, MIB(16), 55);
    check_range(memory, MIB(16), 55);
    _exit(0);
  }
  reap(child, 0);
  CHECK_FAULT(middle, 1, SEGV_ACCERR);
  CHECK(mprotect(memory, MIB(16), RW) == 0);
  check_range(memory, MIB(8), 1);
  check_zero_range(memory + MIB(8), MIB(8));
  stamp_range(memory, MIB(16), 3);
  check_range(memory, MIB(16), 3);
  CHECK(munmap(memory, MIB(16)) == 0);
  puts("protection ok");
}

static void replaced(void) {
  char *memory = map_anon(MIB(16));
  stamp_range(memory, MIB(16), 1);
  char *middle = memory + MIB(5);
  CHECK(mmap(middle, MIB(4), RW, ANON | MAP_FIXED, -1, 0) == middle);
  check_zero_range(middle, MIB(4));
  stamp_range(middle, MIB(4), 70);
  FILE *file = tmpfile();
  CHECK(file != NULL && ftruncate(fileno(file), (off_t)MIB(1)) == 0);
  CHECK(pwrite(fileno(file), "from a file", 11, 8192) == 11);
  char *mapped = memory + MIB(6);
  CHECK(mmap(mapped, MIB(1), RW, MAP_SHARED | MAP_FIXED, fileno(file), 0) == mapped);
  CHECK(memcmp(mapped + 8192, "from a file", 11) == 0);
  stamp(mapped, 123);
  static char back[4096];
  CHECK(pread(fileno(file), back, sizeof back, 0) == 4096);
  CHECK_STAMP(back, 123);
  check_range(memory, MIB(5), 1);
  check_range(middle, MIB(1), 70);
  check_range(middle + MIB(2), MIB(2), 70 + MIB(2) / PAGE);
  check_range(memory + MIB(9), MIB(7), 1 + MIB(9) / PAGE);
  char *shared = memory + MIB(12);
  CHECK(mmap(shared, MIB(2), RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == shared);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    stamp(shared, 5);          /* this the parent sees */
    stamp(mapped + PAGE, 6);   /* and this */
    stamp(memory, 7);          /* this it does not */
    stamp(middle, 8);
    stamp(shared + MIB(2), 9);
    _exit(0);
  }
  reap(child, 0);
  CHECK_STAMP(shared, 5);
  CHECK_STAMP(mapped + PAGE, 6);
  CHECK_STAMP(memory, 1);
  CHECK_STAMP(middle, 70);
  CHECK_STAMP(shared + MIB(2), 1 + MIB(14) / PAGE);
  /* And private anonymous memory once more over the file. */
  CHECK(mmap(mapped, MIB(1), RW, ANON | MAP_FIXED, -1, 0) == mapped);
  check_zero_range(mapped, MIB(1));
  stamp(mapped, 99);
  CHECK(pread(fileno(file), back, sizeof back, 0) == 4096);
  CHECK_STAMP(back, 123);
  CHECK_ERRNO(mmap(memory, MIB(2), RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
  CHECK_STAMP(memory, 1);
  CHECK(munmap(memory, MIB(16)) == 0 && fclose(file) == 0);
  puts("replaced ok");
}

static void advice(void) {
  char *memory = map_anon(MIB(16));
  stamp_range(memory, MIB(16), 1);
  CHECK(madvise(memory + PAGE, PAGE, MADV_DONTNEED) == 0);
  CHECK(madvise(memory + MIB(3) + PAGE, MIB(4), MADV_DONTNEED) == 0);
  CHECK_STAMP(memory, 1);
  check_zero_range(memory + PAGE, PAGE);
  check_range(memory + PAGE * 2, MIB(3) - PAGE, 3);
  check_zero_range(memory + MIB(3) + PAGE, MIB(4));
  check_range(memory + MIB(7) + PAGE, MIB(9) - PAGE, 2 + MIB(7) / PAGE);
  CHECK(madvise(memory, MIB(16), MADV_DONTNEED) == 0);
  check_zero_range(memory, MIB(16));
  stamp_range(memory, MIB(16), 4);
  check_range(memory, MIB(16), 4);

  /* Freed pages hold the old or nothing, and what is written next stays. */
  CHECK(madvise(memory, MIB(4), MADV_FREE) == 0);
  for (size_t i = 0; i < MIB(4) / PAGE; i++)
    CHECK(!stamp_differs(memory + i * PAGE, 4 + i) || !stamp_differs(memory + i * PAGE, 0));
  stamp_range(memory, MIB(4), 6);
  check_range(memory, MIB(4), 6);
  check_range(memory + MIB(4), MIB(12), 4 + MIB(4) / PAGE);

  CHECK_ERRNO(madvise(memory, MIB(2), MADV_REMOVE), EINVAL);
  CHECK_ERRNO(madvise(memory, MIB(2), 9999), EINVAL);
  CHECK_ERRNO(madvise(memory + 1, PAGE, MADV_DONTNEED), EINVAL);
  CHECK(madvise(memory, 0, MADV_DONTNEED) == 0);
  CHECK(madvise(memory, MIB(16), MADV_WILLNEED) == 0 || errno == EBADF);
  CHECK(madvise(memory, MIB(16), MADV_SEQUENTIAL) == 0);
  CHECK(madvise(memory, MIB(16), MADV_NORMAL) == 0);
  check_range(memory, MIB(4), 6);

  static unsigned char resident[MIB(16) / 4096];
  CHECK(mincore(memory, MIB(16), resident) == 0);
  for (size_t i = 0; i < MIB(16) / PAGE; i++)
    CHECK(resident[i] & 1);
  CHECK_ERRNO(mincore(memory + 1, PAGE, resident), EINVAL);
  CHECK(msync(memory, MIB(16), MS_SYNC) == 0);
  CHECK_ERRNO(msync(memory, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
  CHECK(munmap(memory, MIB(16)) == 0);
  puts("advice ok");
}

static void locked(void) {
  /* 4 MiB: within the usual limit of a user without privileges. */
  char *memory = map_anon(MIB(16));
  stamp(memory + MIB(5), 1);
  CHECK(mlock(memory + MIB(4), MIB(4)) == 0);
  static unsigned char resident[MIB(4) / 4096];
  CHECK(mincore(memory + MIB(4), MIB(4), resident) == 0);
  for (size_t i = 0; i < MIB(4) / PAGE; i++)
    CHECK(resident[i] & 1);
  CHECK_STAMP(memory + MIB(5), 1);
  CHECK_ERRNO(madvise(memory + MIB(4), MIB(2), MADV_DONTNEED), EINVAL);
  CHECK_STAMP(memory + MIB(5), 1);
  CHECK(munlock(memory + MIB(4), MIB(4)) == 0);
  CHECK(madvise(memory + MIB(4), MIB(2), MADV_DONTNEED) == 0);
  CHECK_STAMP(memory + MIB(5), 0);
  CHECK(munmap(memory, MIB(16)) == 0);
  CHECK_ERRNO(mlock(memory, PAGE), ENOMEM);
  puts("locked ok");
}

static void over_fork(void) {
  char *memory = map_anon(MIB(24));
  stamp_range(memory, MIB(24), 1);
  char *gone = memory + MIB(6), *wiped = memory + MIB(13);
  CHECK(madvise(gone, MIB(3), MADV_DONTFORK) == 0);
  CHECK(madvise(wiped, MIB(3), MADV_WIPEONFORK) == 0);
  for (unsigned turn = 0; turn < 2; turn++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      check_range(memory, MIB(6), 1);
      if (turn == 0)
        CHECK_FAULT(gone, 0, SEGV_MAPERR);
      if (turn == 0)
        CHECK_FAULT(gone + MIB(3) - 1, 0, SEGV_MAPERR);
      if (turn == 1)
        check_range(gone, MIB(3), 1 + MIB(6) / PAGE);
      check_range(gone + MIB(3), MIB(4), 1 + MIB(9) / PAGE);
      if (turn == 0)
        check_zero_range(wiped, MIB(3));
      else
        check_range(wiped, MIB(3), 1 + MIB(13) / PAGE);
      check_range(wiped + MIB(3), MIB(8), 1 + MIB(16) / PAGE);
      stamp_range(wiped, MIB(3), 1000);
      check_range(wiped, MIB(3), 1000);
      _exit(0);
    }
    reap(child, 0);
    check_range(memory, MIB(24), 1);
    CHECK(madvise(gone, MIB(3), MADV_DOFORK) == 0);
    CHECK(madvise(wiped, MIB(3), MADV_KEEPONFORK) == 0);
  }
  CHECK(munmap(memory, MIB(24)) == 0);
  puts("over fork ok");
}

/* As managed runtimes do: reserve much, commit and give back pieces. */
static void reservation(void) {
  size_t size = MIB(1024);
  char *heap = mmap(NULL, size, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
  CHECK(heap != MAP_FAILED);
  CHECK_FAULT(heap, 0, SEGV_ACCERR);
  CHECK_FAULT(heap + size - 1, 1, SEGV_ACCERR);
  for (size_t offset = 0; offset < size; offset += MIB(64)) {
    char *piece = heap + offset + 5 * PAGE;
    if (offset % MIB(128) == 0)
      CHECK(mprotect(piece, MIB(6), RW) == 0);
    else
      CHECK(mmap(piece, MIB(6), RW, ANON | MAP_FIXED, -1, 0) == piece);
    CHECK_FAULT(piece - 1, 0, SEGV_ACCERR);
    CHECK_FAULT(piece + MIB(6), 0, SEGV_ACCERR);
    check_zero_range(piece, MIB(6));
    stamp_range(piece, MIB(6), offset + 1);
  }
  for (size_t offset = 0; offset < size; offset += MIB(64)) {
    char *piece = heap + offset + 5 * PAGE;
    check_range(piece, MIB(6), offset + 1);
    CHECK(mmap(piece, MIB(2), PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == piece);
    CHECK_FAULT(piece, 0, SEGV_ACCERR);
    check_range(piece + MIB(2), MIB(4), offset + 1 + MIB(2) / PAGE);
    CHECK(madvise(piece + MIB(4), MIB(2), MADV_DONTNEED) == 0);
    CHECK(mprotect(piece, MIB(2), RW) == 0);
    check_zero_range(piece, MIB(2));
    check_range(piece + MIB(2), MIB(2), offset + 1 + MIB(2) / PAGE);
    check_zero_range(piece + MIB(4), MIB(2));
  }
  CHECK(munmap(heap, size) == 0);
  puts("reservation ok");
}

static void placement(void) {
  char *memory = map_anon(MIB(64));
  CHECK(munmap(memory, MIB(64)) == 0);
  char *hint = memory + MIB(3) + PAGE;
  CHECK(mmap(hint, MIB(8), RW, ANON, -1, 0) == hint); /* free, so it is taken */
  stamp_range(hint, MIB(8), 1);
  char *other = mmap(hint, MIB(8), RW, ANON, -1, 0); /* taken, so elsewhere */
  CHECK(other != MAP_FAILED && other != hint);
  check_zero_range(other, MIB(8));
  check_range(hint, MIB(8), 1);
  char *low = mmap(NULL, MIB(4), RW, ANON | MAP_32BIT, -1, 0);
  CHECK(low != MAP_FAILED && (uintptr_t)low >> 32 == 0);
  stamp_range(low, MIB(4), 2);
  check_range(low, MIB(4), 2);
  char *ready = mmap(NULL, MIB(8), RW, ANON | MAP_POPULATE, -1, 0);
  CHECK(ready != MAP_FAILED);
  static unsigned char resident[MIB(8) / 4096];
  CHECK(mincore(ready, MIB(8), resident) == 0);
  for (size_t i = 0; i < MIB(8) / PAGE; i++)
    CHECK(resident[i] & 1);
  check_zero_range(ready, MIB(8));
  char *code = mmap(NULL, MIB(4), RW | PROT_EXEC, ANON, -1, 0);
  CHECK(code != MAP_FAILED);
  memcpy(code + MIB(3), "\xb8\x2a\x00\x00\x00\xc3", 6); /* mov $42,%eax; ret */
  CHECK(((int (*)(void))(uintptr_t)(code + MIB(3)))() == 42);
  char *odd = mmap(NULL, MIB(4) + 100, RW, ANON, -1, 0); /* rounded up */
  CHECK(odd != MAP_FAILED);
  odd[MIB(4) + PAGE - 1] = 1;
  CHECK(munmap(odd, MIB(4) + 100) == 0);
  CHECK_FAULT(odd + MIB(4), 0, SEGV_MAPERR);
  CHECK(munmap(hint, MIB(8)) == 0 && munmap(other, MIB(8)) == 0 && munmap(low, MIB(4)) == 0);
  CHECK(munmap(ready, MIB(8)) == 0 && munmap(code, MIB(4)) == 0);
  puts("placement ok");
}

static void refusals(void) {
  char *memory = map_anon(MIB(8));
  stamp_range(memory, MIB(8), 1);
  CHECK_ERRNO(munmap(memory + 1, PAGE), EINVAL);
  CHECK_ERRNO(munmap(memory, 0), EINVAL);
  CHECK_ERRNO(mmap(NULL, 0, RW, ANON, -1, 0), EINVAL);
  CHECK_ERRNO(mmap(NULL, (size_t)1 << 47, RW, ANON, -1, 0), ENOMEM);
  CHECK_ERRNO(mmap(NULL, SIZE_MAX, RW, ANON, -1, 0), ENOMEM);
  CHECK_ERRNO(mmap(NULL, MIB(4), RW, MAP_ANONYMOUS, -1, 0), EINVAL);
  CHECK_ERRNO(mmap(memory + 1, MIB(4), RW, ANON | MAP_FIXED, -1, 0), EINVAL);
  CHECK_ERRNO(mmap(NULL, MIB(4), RW, ANON, -1, 1), EINVAL);
  CHECK_ERRNO(mmap(NULL, MIB(4), RW, MAP_PRIVATE, -1, 0), EBADF);
  CHECK_ERRNO(mremap(memory + 1, MIB(2), MIB(4), MREMAP_MAYMOVE), EINVAL);
  CHECK_ERRNO(mremap(memory, MIB(2), 0, MREMAP_MAYMOVE), EINVAL);
  CHECK_ERRNO(mremap(memory, 0, MIB(2), MREMAP_MAYMOVE), EINVAL);
  CHECK_ERRNO(mremap(memory, MIB(2), MIB(2), MREMAP_FIXED, memory + MIB(4)), EINVAL);
  CHECK_ERRNO(mremap(memory, MIB(4), MIB(4), MREMAP_MAYMOVE | MREMAP_FIXED, memory + MIB(2)), EINVAL);
  CHECK_ERRNO(mremap(memory, MIB(2), MIB(4), 1 << 20), EINVAL);
  CHECK_ERRNO(mremap(memory, MIB(8), (size_t)1 << 46, MREMAP_MAYMOVE), ENOMEM);
  CHECK_ERRNO(mprotect(memory + 1, PAGE, RW), EINVAL);
  check_range(memory, MIB(8), 1);
  CHECK(munmap(memory, MIB(8)) == 0);
  CHECK_ERRNO(mremap(memory, MIB(2), MIB(4), MREMAP_MAYMOVE), EFAULT);
  CHECK(malloc(PTRDIFF_MAX) == NULL && errno == ENOMEM);
  volatile size_t many = (size_t)1 << 40; /* the product overflows */
  CHECK(calloc(many, many) == NULL && errno == ENOMEM);
  puts("refusals ok");
}

int main(int argc, char **argv) {
  size_t largest = MIB(argument(argc, argv, 1, 256));
  catch_faults();
  growth(largest);
  for (unsigned turn = 0; turn < 3; turn++) {
    moves();
    in_place();
    holes();
    protection();
    replaced();
    advice();
    locked();
    over_fork();
    reservation();
    placement();
    refusals();
  }
  return 0;
}
