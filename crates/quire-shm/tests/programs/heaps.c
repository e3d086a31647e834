/* The typed heap, by two programs: one allocates, the other uses and frees.
 *
 *     heaps make SERVER | heaps use SERVER [replicate] | heaps errors SERVER */
#include "common.h"

#include <quire_dsm.h>

enum { COUNT = 1000, SIZE = 4 << 20 };

static quire_dsm_object *object;

static int64_t offset(const void *block) {
  return (const char *)block - (const char *)quire_dsm_address(object);
}

static void *at(const char *counter) {
  int64_t is = 0;
  CHECK(quire_dsm_at_least(object, counter, 1, &is) == 0);
  return (char *)quire_dsm_address(object) + is;
}

static quire_dsm *reach(const char *address) {
  quire_dsm *server = quire_dsm_connect(address, NULL);
  if (server == NULL)
    fprintf(stderr, "%s\n", quire_dsm_why());
  CHECK(server != NULL);
  return server;
}

/* Leaves blocks behind, and where they are. */
static void make(quire_dsm_heap *heap) {
  double *reals = quire_dsm_tmalloc(heap, QUIRE_DSM_FLOAT64, COUNT);
  int *whole = quire_dsm_tmalloc(heap, QUIRE_DSM_INT32, 3);
  char *bytes = quire_dsm_tmalloc(heap, QUIRE_DSM_UNTYPED, 100);
  CHECK(reals != NULL && whole != NULL && bytes != NULL);
  for (int i = 0; i < COUNT; i++)
    reals[i] = i / 2.0;
  for (int i = 0; i < 3; i++)
    whole[i] = -i;
  strcpy(bytes, "found");
  CHECK(quire_dsm_add(object, "bytes", offset(bytes), NULL) == 0);
  CHECK(quire_dsm_add(object, "whole", offset(whole), NULL) == 0);
  CHECK(quire_dsm_add(object, "reals", offset(reals), NULL) == 0);
  say("made");
  hear();
  /* The other has freed one of them, and left a block. */
  FAILS(quire_dsm_tfree(heap, reals) < 0, EINVAL);
  const int64_t *answer = at("answer");
  int type = 0;
  CHECK(quire_dsm_block(heap, answer, &type, NULL) == 0 && type == QUIRE_DSM_INT64);
  CHECK(*answer == 42 && quire_dsm_tfree(heap, whole) == 0);
}

static void use(quire_dsm_heap *heap) {
  double *reals = at("reals");
  int *whole = at("whole"), type = -1;
  uint64_t count = 0;
  CHECK(quire_dsm_block(heap, reals, &type, &count) == 0);
  CHECK(type == QUIRE_DSM_FLOAT64 && count >= COUNT);
  CHECK(quire_dsm_block(heap, whole, &type, &count) == 0);
  CHECK(type == QUIRE_DSM_INT32 && count >= 3);
  CHECK(quire_dsm_block(heap, at("bytes"), &type, NULL) == 0 && type == QUIRE_DSM_UNTYPED);
  for (int i = 0; i < COUNT; i++)
    CHECK(reals[i] == i / 2.0);
  CHECK(whole[2] == -2 && strcmp(at("bytes"), "found") == 0);
  CHECK(quire_dsm_tfree(heap, reals) == 0);
  int64_t *answer = quire_dsm_tmalloc(heap, QUIRE_DSM_INT64, 1);
  CHECK(answer != NULL);
  *answer = 42;
  CHECK(quire_dsm_add(object, "answer", offset(answer), NULL) == 0);
}

static void why(const char *words) {
  if (strstr(quire_dsm_why(), words) == NULL) {
    fprintf(stderr, "%s lacks %s\n", quire_dsm_why(), words);
    exit(1);
  }
}

static void errors(quire_dsm *server, quire_dsm_heap *heap) {
  char *block = quire_dsm_tmalloc(heap, QUIRE_DSM_INT8, 64);
  int64_t before = quire_dsm_free_space(heap);
  CHECK(block != NULL && before > 0 && before < SIZE);
  FAILS(quire_dsm_tmalloc(heap, 7, 1) == NULL, EINVAL);
  why("QUIRE_DSM_INT8");
  FAILS(quire_dsm_tmalloc(heap, -1, 1) == NULL, EINVAL);
  FAILS(quire_dsm_tmalloc(heap, QUIRE_DSM_INT8, SIZE) == NULL, ENOMEM);
  why("no room");
  FAILS(quire_dsm_tmalloc(heap, QUIRE_DSM_INT64, UINT64_MAX) == NULL, ENOMEM);
  FAILS(quire_dsm_tfree(heap, block + 1) < 0, EINVAL);
  FAILS(quire_dsm_tfree(heap, &before) < 0, EINVAL);
  FAILS(quire_dsm_tfree(heap, NULL) < 0, EINVAL);
  CHECK(quire_dsm_tfree(heap, block) == 0);
  FAILS(quire_dsm_tfree(heap, block) < 0, EINVAL);
  why("not in use");
  FAILS(quire_dsm_block(heap, block, NULL, NULL) < 0, EINVAL);
  CHECK(quire_dsm_recover(heap) == 0);
  FAILS(quire_dsm_heap_open(NULL) == NULL, EINVAL);
  FAILS(quire_dsm_heap_close(NULL) < 0, EINVAL);
  FAILS(quire_dsm_close(object) < 0, EBUSY);

  quire_dsm_object *reader = quire_dsm_open(server, "heap", QUIRE_DSM_READ);
  CHECK(reader != NULL);
  FAILS(quire_dsm_heap_open(reader) == NULL, EACCES);
  CHECK(quire_dsm_close(reader) == 0);
  CHECK(quire_dsm_create(server, "full", SIZE, NULL) == 0);
  quire_dsm_object *full = quire_dsm_open(server, "full", QUIRE_DSM_WRITE);
  CHECK(full != NULL);
  *(int64_t *)quire_dsm_address(full) = 1;
  FAILS(quire_dsm_heap_open(full) == NULL, ENOTEMPTY);
  CHECK(quire_dsm_close(full) == 0 && quire_dsm_remove(server, "full") == 0);
  FAILS(quire_dsm_replicate(server, "none") < 0, ENOENT);
  FAILS(quire_dsm_replicate(server, "heap") < 0, EINVAL);
  why("distributed");
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  quire_dsm *server = reach(argv[2]);
  int makes = strcmp(argv[1], "use") != 0;
  struct quire_dsm_shape shape = {.scheduler = argc > 3 ? argv[3] : "multi"};
  if (makes)
    CHECK(quire_dsm_create(server, "heap", SIZE, &shape) == 0);
  else if (argc > 3)
    CHECK(quire_dsm_replicate(server, "heap") == 0);
  object = quire_dsm_open(server, "heap", QUIRE_DSM_WRITE);
  CHECK(object != NULL);
  quire_dsm_heap *heap = quire_dsm_heap_open(object);
  if (heap == NULL)
    fprintf(stderr, "%s\n", quire_dsm_why());
  CHECK(heap != NULL);
  if (strcmp(argv[1], "make") == 0)
    make(heap);
  else if (makes)
    errors(server, heap);
  else
    use(heap);
  CHECK(quire_dsm_heap_close(heap) == 0 && quire_dsm_close(object) == 0);
  quire_dsm_disconnect(server);
  return 0;
}
