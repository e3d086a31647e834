/* What closes something: objects, heaps, servers; while others use them, and when they are gone.
 *
 *     closes lost SERVER [apart]   what was written when the server is gone is said to be lost
 *     closes broken SERVER [apart] what was written when a server is started anew may be lost
 *     closes heap SERVER           an object is closed as soon as its heap is
 *     closes offers                several threads offer objects of one server
 *     closes refused               a server that cannot start */
#include "common.h"

#include <pthread.h>
#include <quire_dsm.h>
#include <stdatomic.h>
#include <string.h>

enum { ROUNDS = 100, OFFERS = 1000, THREADS = 2 };

static quire_dsm_object *object;
static atomic_int go, terminated;

static quire_dsm_object *open_new(quire_dsm *server, uint64_t size) {
  CHECK(server != NULL && quire_dsm_create(server, "closes", size, NULL) == 0);
  quire_dsm_object *opened = quire_dsm_open(server, "closes", QUIRE_DSM_WRITE);
  CHECK(opened != NULL);
  return opened;
}

static void lost(quire_dsm *server) {
  object = open_new(server, 1 << 20);
  CHECK(quire_dsm_map(object, 0, 4096, NULL) != NULL);
  strcpy(quire_dsm_address(object), "important");
  say("written");
  hear();
  FAILS(quire_dsm_close(object) < 0, EHOSTUNREACH);
  CHECK(strstr(quire_dsm_why(), "link") != NULL);
  quire_dsm_disconnect(server);
}

static void broken(quire_dsm *server) {
  object = open_new(server, 4096);
  quire_dsm_object *other = quire_dsm_open(server, "closes", QUIRE_DSM_WRITE);
  CHECK(other != NULL && quire_dsm_flush(object) == 0);
  volatile char *bytes = quire_dsm_address(object);
  bytes[0] = 'a';
  say("written");
  hear();
  /* This waits for the server that is there now. */
  bytes[1] = 'b';
  FAILS(quire_dsm_flush(object) < 0, EHOSTUNREACH);
  CHECK(strstr(quire_dsm_why(), "may be lost") != NULL);
  bytes[0] = 'c';
  CHECK(quire_dsm_flush(object) == 0 && quire_dsm_close(object) == 0);
  FAILS(quire_dsm_close(other) < 0, EHOSTUNREACH);
  quire_dsm_disconnect(server);
}

static quire_dsm *connect_as(int argc, char **argv) {
  CHECK(argc > 2);
  return argc > 3 ? quire_dsm_connect_apart(argv[2], NULL) : quire_dsm_connect(argv[2], NULL);
}

static void *close_it(void *unused) {
  go = 1;
  while (quire_dsm_close(object) != 0)
    CHECK(errno == EBUSY);
  return unused;
}

static void heap(quire_dsm *server) {
  CHECK(quire_dsm_close(open_new(server, 1 << 24)) == 0);
  for (int round = 0; round < ROUNDS; round++) {
    object = quire_dsm_open(server, "closes", QUIRE_DSM_WRITE);
    quire_dsm_heap *heap = quire_dsm_heap_open(object);
    CHECK(heap != NULL);
    for (int type = QUIRE_DSM_UNTYPED; type <= QUIRE_DSM_FLOAT64; type++)
      CHECK(quire_dsm_tmalloc(heap, type, 16) != NULL);
    pthread_t closer;
    go = 0;
    CHECK(pthread_create(&closer, NULL, close_it, NULL) == 0);
    while (!go)
      ;
    CHECK(quire_dsm_heap_close(heap) == 0 && pthread_join(closer, NULL) == 0);
  }
}

static void init(void *context, quire_dsm_control *control, uint64_t size, uint64_t page) {
  (void)context, (void)control, (void)size, (void)page;
}

static void request(void *context, uint64_t page, uint32_t count, int write) {
  (void)context, (void)page, (void)count, (void)write;
}

static void terminate(void *context) {
  usleep(context == NULL ? 0 : 20000);
  terminated++;
}

static struct quire_dsm_pager pager = {
    .init = init, .data_request = request, .terminate = terminate};

static void *offer(void *server) {
  static atomic_int last;
  char name[16];
  while (!go)
    ;
  for (int i = 0; i < OFFERS; i++) {
    sprintf(name, "o%d", last++);
    CHECK(quire_dsm_server_offer(server, name, 4096, NULL, "rw", &pager, NULL) == 0);
  }
  return NULL;
}

static void offers(void) {
  for (int round = 1; round <= 20; round++) {
    quire_dsm_server *server = quire_dsm_server_new(NULL);
    pthread_t threads[THREADS];
    go = 0;
    for (int i = 0; i < THREADS; i++)
      CHECK(pthread_create(&threads[i], NULL, offer, server) == 0);
    go = 1;
    for (int i = 0; i < THREADS; i++)
      CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(quire_dsm_server_end(server) == 0 && terminated == round * THREADS * OFFERS);
  }
}

/* An object of no size. */
static void refused(void) {
  pager.may_wait = 1;
  quire_dsm_server *server = quire_dsm_server_new(NULL);
  CHECK(quire_dsm_server_offer(server, "none", 0, NULL, "rw", &pager, &pager) == 0);
  FAILS(quire_dsm_server_start(server, "127.0.0.1:0") == NULL, EINVAL);
  CHECK(terminated == 1);
  FAILS(quire_dsm_server_start(server, "127.0.0.1:0") == NULL, EINVAL);
  FAILS(quire_dsm_server_offer(server, "late", 1, NULL, "rw", &pager, &pager) < 0, EINVAL);
  CHECK(quire_dsm_server_end(server) == 0 && terminated == 1);
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  if (strcmp(argv[1], "lost") == 0)
    lost(connect_as(argc, argv));
  else if (strcmp(argv[1], "broken") == 0)
    broken(connect_as(argc, argv));
  else if (strcmp(argv[1], "heap") == 0)
    heap(quire_dsm_connect(argv[2], NULL));
  else if (strcmp(argv[1], "offers") == 0)
    offers();
  else
    refused();
  return 0;
}
