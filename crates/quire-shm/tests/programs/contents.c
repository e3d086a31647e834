/* What an object holds, by its descriptor and by its path.
 *
 *     contents descriptor NAME   reads and writes it in all ways that files have
 *     contents path NAME         opens, looks at and removes /dev/shm/NAME
 *     contents stream NAME       the same by streams */
#include "common.h"

#include <sys/sendfile.h>
#include <sys/uio.h>

#define SIZE (3 << 20)

static unsigned char *made(const char *name, int *fd) {
  *fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(*fd >= 0 && ftruncate(*fd, SIZE) == 0);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  CHECK(at != MAP_FAILED);
  for (int i = 0; i < SIZE; i++)
    at[i] = i % 251;
  return at;
}

static int is_right(const unsigned char *read, size_t length, size_t from) {
  for (size_t i = 0; i < length; i++)
    if (read[i] != (from + i) % 251)
      return 0;
  return 1;
}

static void reads(int fd, unsigned char *at) {
  static unsigned char all[SIZE + 100];
  CHECK(read(fd, all, 100) == 100 && is_right(all, 100, 0));
  CHECK(read(fd, all, sizeof all) == SIZE - 100 && is_right(all, SIZE - 100, 100));
  CHECK(read(fd, all, 1) == 0 && lseek(fd, 0, SEEK_CUR) == SIZE);
  CHECK(pread(fd, all, 10, SIZE - 4) == 4 && is_right(all, 4, SIZE - 4));
  CHECK(pread(fd, all, 10, SIZE + 4) == 0 && lseek(fd, 0, SEEK_CUR) == SIZE);
  struct iovec parts[] = {{all, 3}, {all + 3, 0}, {all + 3, 5000}};
  CHECK(lseek(fd, 7, SEEK_SET) == 7 && readv(fd, parts, 3) == 5003);
  CHECK(is_right(all, 5003, 7) && lseek(fd, 0, SEEK_CUR) == 5010);
  CHECK(preadv(fd, parts, 3, 4090) == 5003 && is_right(all, 5003, 4090));
  CHECK(preadv2(fd, parts, 3, -1, 0) == 5003 && is_right(all, 5003, 5010));
  FAILS(pread(fd, all, 1, -1) == -1, EINVAL);
  /* To the object itself. */
  CHECK(pread(fd, at + (1 << 20), 4096, 251) == 4096 && is_right(at + (1 << 20), 4096, 0));
  for (int i = 0; i < 4096; i++)
    at[(1 << 20) + i] = ((1 << 20) + i) % 251;
}

static void writes(int fd, unsigned char *at) {
  CHECK(pwrite(fd, "here", 4, 4094) == 4 && memcmp(at + 4094, "here", 4) == 0);
  CHECK(lseek(fd, 9, SEEK_SET) == 9 && write(fd, "there", 5) == 5);
  CHECK(memcmp(at + 9, "there", 5) == 0 && lseek(fd, 0, SEEK_CUR) == 14);
  struct iovec parts[] = {{"ab", 2}, {"cde", 3}};
  CHECK(writev(fd, parts, 2) == 5 && memcmp(at + 14, "abcde", 5) == 0);
  CHECK(pwritev(fd, parts, 2, SIZE - 5) == 5 && memcmp(at + SIZE - 5, "abcde", 5) == 0);
  CHECK(pwrite(fd, "abcdef", 6, SIZE - 2) == 2 && memcmp(at + SIZE - 2, "ab", 2) == 0);
  FAILS(pwrite(fd, "a", 1, SIZE) == -1, EFBIG);
  CHECK(write(fd, "", 0) == 0);
}

static void copies(int fd, unsigned char *at) {
  char path[] = "/tmp/quire-contents-XXXXXX";
  int file = mkstemp(path);
  CHECK(file >= 0 && unlink(path) == 0);
  static unsigned char all[SIZE];
  off_t from = 4096;
  CHECK(sendfile(file, fd, &from, SIZE) == SIZE - 4096 && from == SIZE);
  CHECK(pread(file, all, SIZE, 0) == SIZE - 4096 && memcmp(all, at + 4096, SIZE - 4096) == 0);
  loff_t to = 100;
  CHECK(lseek(file, 0, SEEK_SET) == 0 && pwrite(file, "xyz", 3, 0) == 3);
  CHECK(copy_file_range(file, NULL, fd, &to, 3, 0) == 3 && to == 103);
  CHECK(memcmp(at + 100, "xyz", 3) == 0 && lseek(file, 0, SEEK_CUR) == 3);
  int ends[2];
  CHECK(pipe(ends) == 0 && lseek(fd, 100, SEEK_SET) == 100 && sendfile(ends[1], fd, NULL, 3) == 3);
  CHECK(read(ends[0], all, 3) == 3 && memcmp(all, "xyz", 3) == 0);
  CHECK(lseek(fd, 0, SEEK_CUR) == 103);
  int other = open("/dev/zero", O_RDONLY);
  CHECK(other >= 0 && read(other, all, 10) == 10 && close(other) == 0);
  FAILS(read(other, all, 1) == -1, EBADF);
  FAILS(write(other, all, 1) == -1, EBADF);
}

static int descriptor(const char *name) {
  int fd;
  unsigned char *at = made(name, &fd);
  reads(fd, at);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(munmap(at, SIZE) == 0 && pwrite(fd, "child", 5, 2000) == 5);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(memcmp(at + 2000, "child", 5) == 0);
  writes(fd, at);
  copies(fd, at);
  int only = shm_open(name, O_RDONLY, 0);
  unsigned char byte;
  CHECK(only >= 0 && pread(only, &byte, 1, 0) == 1 && byte == at[0]);
  FAILS(write(only, "a", 1) == -1, EBADF);
  CHECK(shm_unlink(name) == 0 && pread(fd, &byte, 1, 0) == 1);
  return 0;
}

static char *path_of(const char *name) {
  char *path = NULL;
  CHECK(asprintf(&path, "/dev/shm%s", name) > 0);
  return path;
}

static int path(const char *name) {
  const char *path = path_of(name);
  struct stat about;
  FAILS(open(path, O_RDWR) == -1, ENOENT);
  FAILS(stat(path, &about) == -1, ENOENT);
  FAILS(access(path, F_OK) == -1, ENOENT);
  int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
  /* As numpy gives a file its size. */
  CHECK(lseek(fd, SIZE - 1, SEEK_SET) == SIZE - 1 && write(fd, "z", 1) == 1);
  CHECK(fstat(fd, &about) == 0 && about.st_size == SIZE);
  CHECK(stat(path, &about) == 0 && about.st_size == SIZE);
  CHECK(lstat(path, &about) == 0 && about.st_size == SIZE);
  CHECK(fstatat(AT_FDCWD, path, &about, 0) == 0 && about.st_size == SIZE);
  struct statx more;
  CHECK(statx(AT_FDCWD, path, 0, STATX_SIZE, &more) == 0 && more.stx_size == SIZE);
  ino_t number = about.st_ino;
  int third = open(path, O_RDONLY);
  CHECK(third >= 0 && fstat(third, &about) == 0 && about.st_ino == number && more.stx_ino == number);
  CHECK(about.st_blocks == SIZE / 512 && lseek(third, 5, SEEK_DATA) == 5);
  CHECK(lseek(third, 5, SEEK_HOLE) == SIZE && close(third) == 0);
  CHECK(access(path, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, path, F_OK, 0) == 0);
  FAILS(access(path, X_OK) == -1, EACCES);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED && at[SIZE - 1] == 'z');
  int again = openat(AT_FDCWD, path, O_WRONLY);
  CHECK(again >= 0 && fcntl(again, F_GETFD) == 0 && pwrite(again, "again", 5, 0) == 5);
  CHECK(memcmp(at, "again", 5) == 0 && close(again) == 0);
  int by_name = shm_open(name, O_RDWR, 0);
  CHECK(by_name >= 0 && pread(by_name, &more, 5, 0) == 5 && memcmp(&more, "again", 5) == 0);
  /* What is no object's. */
  FAILS(open("/dev/shm/quire-tests-none", O_RDWR) == -1, ENOENT);
  int directory = open("/dev/shm", O_RDONLY | O_DIRECTORY);
  CHECK(directory >= 0 && close(directory) == 0);
  /* Where a directory is, it is the program's. */
  char other[64];
  snprintf(other, sizeof other, "/dev/shm/quire-contents-%d", getpid());
  FAILS(stat(other, &about) == -1, ENOENT);
  CHECK(mkdir(other, 0700) == 0 && stat(other, &about) == 0 && S_ISDIR(about.st_mode));
  CHECK(access(other, X_OK) == 0 && rmdir(other) == 0);
  CHECK(unlink(path) == 0);
  FAILS(unlink(path) == -1, ENOENT);
  FAILS(access(path, F_OK) == -1, ENOENT);
  return 0;
}

static int stream(const char *name) {
  int fd;
  unsigned char *at = made(name, &fd);
  const char *path = path_of(name);
  static unsigned char all[SIZE + 1];
  FILE *file = fopen(path, "r+");
  CHECK(file != NULL && fread(all, 1, sizeof all, file) == SIZE && is_right(all, SIZE, 0));
  CHECK(feof(file) && fseek(file, 10, SEEK_SET) == 0 && ftell(file) == 10);
  CHECK(fputs("stream", file) >= 0 && fflush(file) == 0 && memcmp(at + 10, "stream", 6) == 0);
  CHECK(fclose(file) == 0);
  file = fopen(path, "r");
  CHECK(file != NULL && fgetc(file) == 0 && fgetc(file) == 1 && fclose(file) == 0);
  CHECK(unlink(path) == 0 && fopen(path, "r") == NULL && errno == ENOENT);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  switch (argv[1][0]) {
  case 'd':
    return descriptor(argv[2]);
  case 'p':
    return path(argv[2]);
  default:
    return stream(argv[2]);
  }
}
