/* Calls of quire_dsm.h that a program makes by itself, and what they say where they fail.
 *
 *     asks SERVER */
#include "common.h"

#include <quire_dsm.h>

#define PAGE 4096

static void why(const char *words) {
  if (strstr(quire_dsm_why(), words) == NULL) {
    fprintf(stderr, "%s lacks %s\n", quire_dsm_why(), words);
    exit(1);
  }
}

static void errors(quire_dsm *server, quire_dsm_object *object) {
  FAILS(quire_dsm_connect(NULL, NULL) == NULL, EINVAL);
  FAILS(quire_dsm_connect("nowhere", NULL) == NULL, EINVAL);
  why("HOST:PORT");
  FAILS(quire_dsm_connect("unix:/nonexistent/socket", NULL) == NULL, EHOSTUNREACH);
  why("/nonexistent/socket");
  struct quire_dsm_identity who = {.name = "a b"};
  FAILS(quire_dsm_connect("unix:/s", &who) == NULL, EINVAL);
  who = (struct quire_dsm_identity){.certificate = "/nonexistent", .key = "/k", .ca = "/c"};
  FAILS(quire_dsm_connect("unix:/s", &who) == NULL, EACCES);
  why("/nonexistent");
  who = (struct quire_dsm_identity){.tls = "everywhere"};
  FAILS(quire_dsm_connect("unix:/s", &who) == NULL, EINVAL);
  FAILS(quire_dsm_create(server, "asked", PAGE, NULL) < 0, EEXIST);
  FAILS(quire_dsm_create(server, "a b", PAGE, NULL) < 0, EINVAL);
  FAILS(quire_dsm_create(server, "none", 0, NULL) < 0, EINVAL);
  struct quire_dsm_shape shape = {.page_size = 5000};
  FAILS(quire_dsm_create(server, "none", PAGE, &shape) < 0, EINVAL);
  why("power of two");
  shape = (struct quire_dsm_shape){.types = "int33"};
  FAILS(quire_dsm_create(server, "none", PAGE, &shape) < 0, EINVAL);
  shape = (struct quire_dsm_shape){.scheduler = "best"};
  FAILS(quire_dsm_create(server, "none", PAGE, &shape) < 0, EINVAL);
  FAILS(quire_dsm_open(server, "none", QUIRE_DSM_READ) == NULL, ENOENT);
  why("none");
  FAILS(quire_dsm_open(server, "asked", 7) == NULL, EINVAL);
  FAILS(quire_dsm_open(NULL, "asked", QUIRE_DSM_READ) == NULL, EINVAL);
  FAILS(quire_dsm_remove(server, "asked") < 0, EBUSY);
  FAILS(quire_dsm_remove(server, "none") < 0, ENOENT);
  FAILS(quire_dsm_tag(server, "none", "int32") < 0, ENOENT);
  FAILS(quire_dsm_grant(server, "asked", "anyone", "x") < 0, EINVAL);
  FAILS(quire_dsm_map(object, 100, PAGE, NULL) == NULL, EINVAL);
  FAILS(quire_dsm_map(object, 0, 64 * PAGE, NULL) == NULL, EINVAL);
  FAILS(quire_dsm_unmap(object, object) < 0, EINVAL);
  FAILS(quire_dsm_unlock(object, "mutex") < 0, EPERM);
  FAILS(quire_dsm_lock(object, "") < 0, EINVAL);
  FAILS(quire_dsm_close(NULL) < 0, EINVAL);
}

/* Pages of one's own, and those that others have, are one memory. */
static void apart(const char *address, int *numbers) {
  quire_dsm *server = quire_dsm_connect_apart(address, NULL);
  CHECK(server != NULL);
  quire_dsm_object *object = quire_dsm_open(server, "asked", QUIRE_DSM_WRITE);
  CHECK(object != NULL);
  int *own = quire_dsm_map(object, 2 * PAGE, PAGE, NULL);
  CHECK(own != NULL);
  own[0] = 8;
  CHECK(numbers[2 * PAGE / 4] == 8);
  numbers[2 * PAGE / 4] = 9;
  CHECK(own[0] == 9 && quire_dsm_close(object) == 0);
  quire_dsm_disconnect(server);
  FAILS(quire_dsm_connect_apart(NULL, NULL) == NULL, EINVAL);
}

int main(int argc, char **argv) {
  CHECK(argc == 2 && quire_dsm_api() >= QUIRE_DSM_API);
  struct quire_dsm_identity who = {.name = "asker"};
  quire_dsm *server = quire_dsm_connect(argv[1], &who);
  CHECK(server != NULL);
  struct quire_dsm_shape shape = {.page_size = 16384, .scheduler = "multi"};
  CHECK(quire_dsm_create(server, "asked", 10 * PAGE, &shape) == 0);
  CHECK(quire_dsm_tag(server, "asked", "int32:0-8K") == 0);
  CHECK(quire_dsm_grant(server, "asked", "anyone", "r") == 0);
  quire_dsm_object *object = quire_dsm_open(server, "asked", QUIRE_DSM_WRITE);
  quire_dsm_object *reader = quire_dsm_open(server, "asked", QUIRE_DSM_READ);
  CHECK(object != NULL && reader != NULL && quire_dsm_size(object) == 10 * PAGE);
  int *numbers = quire_dsm_address(object);
  const int *same = quire_dsm_address(reader);
  CHECK(numbers != NULL && same != NULL && same != numbers);
  CHECK(quire_dsm_will_need(object, PAGE, 100 * PAGE, QUIRE_DSM_WRITE) == 0);
  CHECK(quire_dsm_will_need(reader, PAGE, 1, QUIRE_DSM_READ) == 0);
  FAILS(quire_dsm_will_need(object, 0, PAGE, 2) < 0, EINVAL);
  FAILS(quire_dsm_will_need(object, 1, UINT64_MAX, QUIRE_DSM_READ) < 0, EINVAL);
  FAILS(quire_dsm_will_need(NULL, 0, PAGE, QUIRE_DSM_READ) < 0, EINVAL);
  numbers[PAGE / 4] = 5;
  CHECK(same[PAGE / 4] == 5);
  int *part = quire_dsm_map(object, PAGE, 2 * PAGE, NULL);
  CHECK(part != NULL && part[0] == 5);
  part[1] = 6;
  CHECK(numbers[PAGE / 4 + 1] == 6 && same[PAGE / 4 + 1] == 6);
  CHECK(quire_dsm_flush(object) == 0 && quire_dsm_unmap(object, part) == 0);
  apart(argv[1], numbers);

  CHECK(quire_dsm_lock(object, "mutex") == 0);
  FAILS(quire_dsm_try_lock(reader, "mutex") < 0, EBUSY);
  CHECK(quire_dsm_unlock(object, "mutex") == 0 && quire_dsm_try_lock(reader, "mutex") == 0);
  CHECK(quire_dsm_signal(object, "condition", 0) == 0);
  int64_t value = 0;
  CHECK(quire_dsm_add(object, "counter", 7, &value) == 0 && value == 7);
  CHECK(quire_dsm_at_least(reader, "counter", 5, &value) == 0 && value == 7);
  CHECK(quire_dsm_add(object, "counter", -7, NULL) == 0);
  CHECK(quire_dsm_barrier(object, "alone", 1) == 0 && quire_dsm_mend(object, "alone") == 0);
  errors(server, object);

  CHECK(quire_dsm_close(reader) == 0 && quire_dsm_close(object) == 0);
  CHECK(quire_dsm_remove(server, "asked") == 0);
  quire_dsm_disconnect(server);
  return 0;
}
