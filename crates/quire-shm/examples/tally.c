/* Programs on several machines count words of a text together: each takes the next part,
 * adds what it found to a table in shared memory, and the first prints the sum.
 *
 *     cc tally.c -I ../include -L DIRECTORY_OF_THE_LIBRARY -lquire_dsm -o tally
 *     quire serve &
 *     ./tally 127.0.0.1:7450 0 2 & ./tally 127.0.0.1:7450 1 2 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire_dsm.h>

enum { PARTS = 64, LETTERS = 26 };

struct table {
  uint64_t letters[LETTERS];
  uint64_t programs[PARTS]; /* which program took a part */
};

static const char text[] = "the quick brown fox jumps over the lazy dog";

static void fail(const char *what) {
  fprintf(stderr, "tally: %s: %s\n", what, quire_dsm_why());
  exit(1);
}

static void count(quire_dsm_object *object, struct table *table, int me) {
  int64_t part;
  for (;;) {
    if (quire_dsm_add(object, "next", 1, &part) < 0)
      fail("next");
    if (part > PARTS)
      return;
    if (quire_dsm_lock(object, "table") < 0)
      fail("lock");
    for (const char *at = text; *at != 0; at++)
      if (*at != ' ')
        table->letters[*at - 'a'] += 1;
    table->programs[part - 1] = me + 1;
    if (quire_dsm_unlock(object, "table") < 0)
      fail("unlock");
  }
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: tally SERVER ME PROGRAMS\n");
    return 2;
  }
  int me = atoi(argv[2]), programs = atoi(argv[3]);
  quire_dsm *server = quire_dsm_connect(argv[1], NULL);
  if (server == NULL)
    fail("connect");
  struct quire_dsm_shape shape = {.types = "int64"};
  if (quire_dsm_create(server, "tally", sizeof(struct table), &shape) < 0 && errno != EEXIST)
    fail("create");
  quire_dsm_object *object = quire_dsm_open(server, "tally", QUIRE_DSM_WRITE);
  if (object == NULL)
    fail("open");
  struct table *table = quire_dsm_address(object);
  if (quire_dsm_barrier(object, "begin", programs) < 0)
    fail("barrier");
  count(object, table, me);
  if (quire_dsm_barrier(object, "end", programs) < 0)
    fail("barrier");
  if (me == 0) {
    uint64_t letters = 0, taken = 0;
    for (int i = 0; i < LETTERS; i++)
      letters += table->letters[i];
    for (int i = 0; i < PARTS; i++)
      taken += table->programs[i] != 0;
    printf("%llu letters in %llu parts, %llu times o\n", (unsigned long long)letters,
           (unsigned long long)taken, (unsigned long long)table->letters['o' - 'a']);
  }
  quire_dsm_close(object);
  quire_dsm_disconnect(server);
  return 0;
}
