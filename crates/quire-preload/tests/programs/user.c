/* A program that gives up its user: soon no thread of it has the old one, and the library's is back when it grows.
 * Argument: dumpable, if it allows itself to be looked at afterwards, as programs must that are to be. */
#include "promise.h"
#include <grp.h>
#include <sys/prctl.h>

/* How many threads have the user root in any of their four. */
static int roots(void) {
  int count = 0;
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    char path[300], text[4000];
    unsigned user[4];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    if (task->d_name[0] == '.' || read_text(path, text, sizeof text) == 0)
      continue;
    char *line = strstr(text, "\nUid:");
    CHECK(line != NULL && sscanf(line, "\nUid: %u %u %u %u", user, user + 1, user + 2, user + 3) == 4);
    count += user[0] == 0 || user[1] == 0 || user[2] == 0 || user[3] == 0;
  }
  CHECK(closedir(tasks) == 0);
  return count;
}

int main(int argc, char **argv) {
  if (geteuid() != 0)
    CANNOT("not root");
  char *memory = grow_up();
  CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
  if (argc > 1 && strcmp(argv[1], "dumpable") == 0)
    CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
  double begin = seconds();
  while (roots() > 0 && seconds() - begin < 8)
    sleep_ms(10);
  NOTE("no thread of the old user after %.1f s", seconds() - begin);
  CHECK(roots() == 0 && seconds() - begin < 2.5);
  char *more = grow(MIB(160));
  /* Who may not be looked at may not look at its own page table, either. */
  int back = !has_helper() || wait_for_helper(1, 3);
  if (argc > 1 && !back)
    FAIL("%s", "the helper does not come back when the process grows");
  NOTE("the helper is %sback", back ? "" : "not ");
  sleep_ms(200);
  CHECK(roots() == 0 && (argc == 1 || !has_helper() || helper() != 0));
  check_range(memory, MIB(96), 1);
  check_range(more, MIB(160), 1);
  puts("user ok");
  return 0;
}
