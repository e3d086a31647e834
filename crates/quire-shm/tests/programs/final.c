/* A program in C whose server is away for longer than touches wait, and then back.
 *
 *     final SERVER */
#include "common.h"

#include <quire_dsm.h>

static quire_dsm_object *get(quire_dsm *server) {
  quire_dsm_object *grid = quire_dsm_open(server, "grid", QUIRE_DSM_WRITE);
  CHECK(grid != NULL);
  *(volatile char *)quire_dsm_address(grid) += 1;
  return grid;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  quire_dsm *server = quire_dsm_connect(argv[1], NULL);
  CHECK(server != NULL && quire_dsm_create(server, "grid", 4096, NULL) == 0);
  quire_dsm_object *grid = get(server);
  CHECK(quire_dsm_flush(grid) == 0);
  say("made");
  hear();
  /* Meanwhile it may be back at any time. */
  FAILS(quire_dsm_flush(grid) < 0, EHOSTUNREACH);
  while (errno == EHOSTUNREACH) {
    usleep(100000);
    CHECK(quire_dsm_flush(grid) < 0);
  }
  CHECK(errno == ENOTCONN && strstr(quire_dsm_why(), "open it again") != NULL);
  say("failed");
  hear();
  /* The server is back, and the object is given up all the same. */
  int64_t value;
  while (quire_dsm_create(server, "grid", 4096, NULL) < 0 && errno == EHOSTUNREACH)
    usleep(100000);
  CHECK(errno == EEXIST);
  FAILS(quire_dsm_flush(grid) < 0, ENOTCONN);
  FAILS(quire_dsm_add(grid, "counter", 1, &value) < 0, ENOTCONN);
  FAILS(quire_dsm_map(grid, 0, 4096, NULL) == NULL, ENOTCONN);
  FAILS(quire_dsm_close(grid) < 0, ENOTCONN);
  grid = get(server);
  CHECK(*(volatile char *)quire_dsm_address(grid) == 2);
  CHECK(quire_dsm_close(grid) == 0);
  quire_dsm_disconnect(server);
  return 0;
}
