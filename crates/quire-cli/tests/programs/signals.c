/* Checks that signals, traps and saved flags are what they are without a
 * tracer, while a timer goes off all the time. Exits with 42. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t users, alarms, traps;

static void count(int signal) {
  if (signal == SIGUSR1)
    users++;
  else if (signal == SIGALRM)
    alarms++;
  else
    traps++;
}

static void on(int signal) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = count;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, NULL);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void fail(const char *what) {
  fprintf(stderr, "signals: %s (errno %s)\n", what, strerror(errno));
  _exit(1);
}

static uint64_t flags(void) {
  uint64_t value;
  __asm__ volatile("pushfq; popq %0" : "=r"(value)::"memory");
  return value;
}

/* A sleep in epoll_wait must end by its time and by nothing else. */
static void sleep_undisturbed(int epoll) {
  struct itimerval none = {{0, 0}, {0, 0}}, old;
  struct epoll_event event;
  setitimer(ITIMER_REAL, &none, &old);
  if (epoll_wait(epoll, &event, 1, 30) != 0)
    fail("epoll_wait was disturbed");
  setitimer(ITIMER_REAL, &old, NULL);
}

int main(void) {
  int epoll = epoll_create1(0);
  on(SIGUSR1);
  on(SIGALRM);
  on(SIGTRAP);
  struct itimerval often = {{0, 20000}, {0, 20000}};
  setitimer(ITIMER_REAL, &often, NULL);
  int sent = 0, trapped = 0;
  for (double end = seconds() + 1.5; seconds() < end;) {
    for (int i = 0; i < 200; i++) {
      kill(getpid(), SIGUSR1);
      sent++;
      __asm__ volatile("int3");
      raise(SIGTRAP);
      trapped += 2;
      for (int j = 0; j < 500; j++)
        if (flags() & 0x100)
          fail("the trap flag is seen");
    }
    sleep_undisturbed(epoll);
  }
  if (users != sent)
    fail("a SIGUSR1 was lost or doubled");
  if (traps != trapped)
    fail("a SIGTRAP was lost or doubled");
  if (alarms == 0)
    fail("the timer did not go off");
  return 42;
}
