/* The library's thread takes next to nothing while the program rests.  Arguments: MiB used before, seconds. */
#include "promise.h"

int main(int argc, char **argv) {
  size_t len = MIB(argument(argc, argv, 1, 512));
  double time = (double)argument(argc, argv, 2, 5);
  char *memory = grow(len);
  CHECK(!has_helper() || wait_for_helper(1, 5));
  /* Until all is copied that is to be. */
  if (policy_is("adaptive"))
    wait_for_huge(memory, len, 98, 60);
  sleep_ms(5000);
  if (has_helper()) {
    int thread = helper();
    double before = processor_time(thread);
    NOTE("%.1f ms so far", before * 1e3);
    sleep_ms((long)(time * 1e3));
    double percent = 100 * (processor_time(thread) - before) / time;
    NOTE("%.3f %% of a processor at rest", percent);
    if (percent > 0.5)
      FAIL("%.2f %% of a processor at rest", percent);
  }
  check_range(memory, len, 1);
  puts("idle ok");
  return 0;
}
