/* A program that gives up the rights of root: no thread of it keeps them, whoever started it, and memory works.  As
 * another user it has nothing to give up. */
#include "common.h"
#include <dirent.h>
#include <grp.h>

#define OTHER 65534

static void use(void) {
  char *memory = map_anon(MIB(48));
  stamp_range(memory, MIB(48), 5);
  char *heap = malloc(MIB(24));
  CHECK(heap != NULL);
  memset(heap, 6, MIB(24));
  check_range(memory, MIB(48), 5);
  CHECK(munmap(memory, MIB(48)) == 0);
  free(heap);
}

/* How many threads have another user or group than they should, or capabilities. */
static int with_rights(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int found = 0;
  for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
    char path[300], line[200];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
    if (status == NULL)
      continue;
    int others = 0;
    unsigned a, b, c, d;
    unsigned long long capabilities;
    while (fgets(line, sizeof line, status) != NULL) {
      if (sscanf(line, "Uid: %u %u %u %u", &a, &b, &c, &d) == 4 || sscanf(line, "Gid: %u %u %u %u", &a, &b, &c, &d) == 4)
        others |= a != OTHER || b != OTHER || c != OTHER || d != OTHER;
      if (sscanf(line, "CapPrm: %llx", &capabilities) == 1)
        others |= capabilities != 0;
    }
    fclose(status);
    found += others;
  }
  closedir(tasks);
  return found;
}

int main(void) {
  use();
  if (geteuid() == 0) {
    CHECK(setgroups(0, NULL) == 0);
    CHECK(setresgid(OTHER, OTHER, OTHER) == 0);
    CHECK(setresuid(OTHER, OTHER, OTHER) == 0);
    /* Its threads follow a moment later. */
    int tries = 0;
    while (with_rights() > 0 && tries++ < 300)
      usleep(10000);
    CHECK(with_rights() == 0);
  }
  use();
  puts("ok");
  return 0;
}
