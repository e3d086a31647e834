/* Uses the objects of examples/pagers.c, and what cannot be offered.
 *
 *     paged SERVER */
#include "common.h"

#include <quire_dsm.h>

#define PAGE 4096

static void nothing(void *context, quire_dsm_control *control, uint64_t size, uint64_t page) {
  (void)context, (void)control, (void)size, (void)page;
}

static void request(void *context, uint64_t page, uint32_t count, int write) {
  (void)context, (void)page, (void)count, (void)write;
}

static void terminate(void *context) {
  *(int *)context += 1;
}

static void errors(const char *taken) {
  int ended = 0;
  struct quire_dsm_pager pager = {.init = nothing, .terminate = terminate};
  quire_dsm_server *server = quire_dsm_server_new(NULL);
  CHECK(server != NULL);
  FAILS(quire_dsm_server_offer(server, "it", PAGE, NULL, "r", &pager, &ended) < 0, EINVAL);
  CHECK(strstr(quire_dsm_why(), "data_request") != NULL);
  pager.data_request = request;
  FAILS(quire_dsm_server_offer(server, "a b", PAGE, NULL, "r", &pager, &ended) < 0, EINVAL);
  FAILS(quire_dsm_server_offer(server, "it", PAGE, NULL, "x", &pager, &ended) < 0, EINVAL);
  FAILS(quire_dsm_server_offer(server, "it", PAGE, NULL, "r", NULL, &ended) < 0, EINVAL);
  FAILS(quire_dsm_server_start(server, "nowhere") == NULL, EINVAL);
  CHECK(ended == 0);
  CHECK(quire_dsm_server_offer(server, "it", PAGE, NULL, "r", &pager, &ended) == 0);
  FAILS(quire_dsm_server_offer(server, "it", PAGE, NULL, "r", &pager, NULL) < 0 || ended, EEXIST);
  FAILS(quire_dsm_server_start(server, taken) == NULL, EADDRINUSE);
  CHECK(quire_dsm_server_end(server) == 0 && ended == 1);
  FAILS(quire_dsm_server_end(NULL) < 0, EINVAL);
  FAILS(quire_dsm_set_attributes(NULL, 0) < 0, EINVAL);
  FAILS(quire_dsm_data_unavailable(NULL, 0, 1) < 0, EINVAL);
}

static quire_dsm_object *open_or_die(quire_dsm *server, const char *name, int rights) {
  quire_dsm_object *object = quire_dsm_open(server, name, rights);
  if (object == NULL)
    fprintf(stderr, "%s: %s\n", name, quire_dsm_why());
  CHECK(object != NULL);
  return object;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  quire_dsm *server = quire_dsm_connect(argv[1], NULL);
  CHECK(server != NULL);
  quire_dsm_object *squares = open_or_die(server, "squares", QUIRE_DSM_READ);
  const uint64_t *numbers = quire_dsm_address(squares);
  for (uint64_t i = 0; i < 20000; i += 7)
    CHECK(numbers[i] == i * i);
  FAILS(quire_dsm_open(server, "squares", QUIRE_DSM_WRITE) == NULL, EACCES);

  quire_dsm_object *notes = open_or_die(server, "notes", QUIRE_DSM_WRITE);
  char *text = quire_dsm_address(notes);
  CHECK(text[0] == 0 && text[5 * PAGE] == 0);
  strcpy(text + 5 * PAGE, "kept by the pager");
  CHECK(quire_dsm_flush(notes) == 0 && quire_dsm_close(notes) == 0);
  notes = open_or_die(server, "notes", QUIRE_DSM_WRITE);
  CHECK(strcmp((char *)quire_dsm_address(notes) + 5 * PAGE, "kept by the pager") == 0);

  quire_dsm_object *file = open_or_die(server, "file", QUIRE_DSM_WRITE);
  char *contents = quire_dsm_address(file);
  CHECK(memcmp(contents, "what was there", 14) == 0);
  memcpy(contents + 5, "is!", 3);
  contents[quire_dsm_size(file) - 1] = '.';
  CHECK(quire_dsm_flush(file) == 0);
  CHECK(quire_dsm_close(file) == 0 && quire_dsm_close(notes) == 0);
  CHECK(quire_dsm_close(squares) == 0);
  quire_dsm_disconnect(server);
  errors(argv[1]);
  return 0;
}
