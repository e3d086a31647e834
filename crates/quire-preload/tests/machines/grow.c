/* Grows, and stays until it is told to end, so that others can look at it.
 * Arguments: MiB, seconds that it waits at most for the next signal.
 * Prints its process number when the memory is filled.  SIGUSR2: has a child,
 * and both write to the memory, which takes superpages apart; prints how many
 * MiB are on superpages when the child has ended.  SIGUSR1: checks the
 * contents, and ends.  It ends with 3 where nobody told it to, with 1 where contents are wrong. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned char *memory;
static size_t size;

static unsigned char expected(size_t page) { return (unsigned char)(page % 251 + 1); }

static int is_whole(void) {
  for (size_t at = 0; at < size; at += 4096)
    if (memory[at] != expected(at / 4096) || memory[at + 4095] != expected(at / 4096))
      return 0;
  return 1;
}

static long huge_mib(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long kib = -1024;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "AnonHugePages: %ld", &kib) == 1)
      break;
  if (file)
    fclose(file);
  return kib / 1024;
}

static int have_a_child(void) {
  int born[2];
  char byte;
  fflush(stdout);
  if (pipe(born) != 0)
    return 0;
  pid_t child = fork();
  if (child == 0) {
    for (size_t at = 0; at < size / 2; at += 4096)
      memory[at] ^= 255;
    if (write(born[1], "", 1) != 1)
      _exit(1);
    sleep(1);
    /* What the parent wrote meanwhile is not seen here. */
    for (size_t at = size / 2; at < size; at += 4096)
      if (memory[at] != expected(at / 4096))
        _exit(1);
    _exit(0);
  }
  int status = -1;
  if (child < 0 || read(born[0], &byte, 1) != 1)
    return 0;
  for (size_t at = 0; at < size; at += 4096)
    memory[at] ^= 255;
  if (waitpid(child, &status, 0) != child || status != 0)
    return 0;
  for (size_t at = 0; at < size; at += 4096)
    memory[at] ^= 255;
  close(born[0]);
  close(born[1]);
  printf("%ld\n", huge_mib());
  fflush(stdout);
  return 1;
}

int main(int argc, char **argv) {
  size = (size_t)atol(argv[1]) << 20;
  struct timespec longest = {.tv_sec = argc > 2 ? atol(argv[2]) : 60};
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGUSR1);
  sigaddset(&told, SIGUSR2);
  sigprocmask(SIG_BLOCK, &told, NULL);
  memory = malloc(size);
  if (!memory)
    return 2;
  for (size_t at = 0; at < size; at += 4096)
    memset(memory + at, expected(at / 4096), 4096);
  printf("%d\n", (int)getpid());
  fflush(stdout);
  for (;;) {
    int signal = sigtimedwait(&told, NULL, &longest);
    if (signal == SIGUSR1)
      return is_whole() ? 0 : 1;
    if (signal != SIGUSR2)
      return 3;
    if (!have_a_child())
      return 1;
  }
}
