/* Tells what an access does: nothing, or which signal with which code and
 * address.  The handler jumps back out, so a program may go on after it. */
#ifndef QUIRE_TEST_FAULTS_H
#define QUIRE_TEST_FAULTS_H

#include "common.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf fault_return;
static volatile int fault_signal, fault_code, fault_expected;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context) {
  (void)context;
  if (!fault_expected)
    FAIL("unexpected signal %d, code %d, address %p", signal, info->si_code, info->si_addr);
  fault_signal = signal;
  fault_code = info->si_code;
  fault_address = info->si_addr;
  siglongjmp(fault_return, 1);
}

static inline void catch_faults(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
  CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
  CHECK(sigaction(SIGBUS, &action, NULL) == 0);
}

/* The signal that reading (or writing) the byte raises; 0 if none. */
static inline int fault_at(volatile char *byte, int write) {
  fault_signal = 0;
  fault_expected = 1;
  if (sigsetjmp(fault_return, 1) == 0) {
    char value = *byte;
    if (write)
      *byte = value;
  }
  fault_expected = 0;
  return fault_signal;
}

#define CHECK_FAULT(byte, write, code)                                         \
  do {                                                                         \
    char *byte_ = (byte);                                                      \
    int signal_ = fault_at(byte_, (write));                                    \
    if (signal_ != SIGSEGV || fault_code != (code) || fault_address != byte_)  \
      FAIL("%s of %s (%p): signal %d code %d address %p, wanted SIGSEGV %s",   \
           (write) ? "write" : "read", #byte, (void *)byte_, signal_,          \
           fault_code, fault_address, #code);                                  \
  } while (0)

#define CHECK_NO_FAULT(byte, write)                                            \
  do {                                                                         \
    int signal_ = fault_at((byte), (write));                                   \
    if (signal_ != 0)                                                          \
      FAIL("%s (%p): unexpected signal %d code %d", #byte, (void *)(byte),     \
           signal_, fault_code);                                               \
  } while (0)

#endif
