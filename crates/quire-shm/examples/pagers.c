/* Pagers of a program's own: it is a server, and three of its objects hold what it likes.
 *
 *     cc pagers.c -I ../include -L DIRECTORY_OF_THE_LIBRARY -lquire_dsm -o pagers
 *     ./pagers 127.0.0.1:0 FILE
 *
 *   squares  is computed where somebody looks: the square of each index; only to be read
 *   notes    begins with zeros, and is kept in memory of this program
 *   file     is the file that is named, and what is written goes there
 *
 * It prints where it listens, and serves until its standard input ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <quire_dsm.h>

struct state {
  quire_dsm_control *control;
  uint64_t size, page;
  char **kept; /* of notes: each page that was written */
  int file;
};

static void begin(void *context, quire_dsm_control *control, uint64_t size, uint64_t page) {
  struct state *state = context;
  *state = (struct state){control, size, page, state->kept, state->file};
}

/* squares */

static void squares_init(void *context, quire_dsm_control *control, uint64_t size, uint64_t page) {
  begin(context, control, size, page);
  quire_dsm_set_attributes(control, QUIRE_DSM_KEEPS);
}

static void squares_request(void *context, uint64_t page, uint32_t count, int write) {
  struct state *state = context;
  (void)write;
  uint64_t *numbers = malloc(state->page), each = state->page / sizeof *numbers;
  for (uint64_t at = page; at < page + count; at++) {
    if (numbers == NULL) {
      quire_dsm_data_error(state->control, at, 1, "no memory");
      continue;
    }
    for (uint64_t i = 0; i < each; i++)
      numbers[i] = (at * each + i) * (at * each + i);
    quire_dsm_data_provided(state->control, at, 1, numbers, 0);
  }
  free(numbers);
}

/* notes */

static void notes_init(void *context, quire_dsm_control *control, uint64_t size, uint64_t page) {
  begin(context, control, size, page);
  struct state *state = context;
  state->kept = calloc((size + page - 1) / page, sizeof *state->kept);
  quire_dsm_set_attributes(control, QUIRE_DSM_MAY_WRITE | QUIRE_DSM_KEEPS);
}

static void notes_request(void *context, uint64_t page, uint32_t count, int write) {
  struct state *state = context;
  (void)write;
  for (uint64_t at = page; at < page + count; at++) {
    if (state->kept == NULL)
      quire_dsm_data_error(state->control, at, 1, "no memory");
    else if (state->kept[at] == NULL)
      quire_dsm_data_unavailable(state->control, at, 1);
    else
      quire_dsm_data_provided(state->control, at, 1, state->kept[at], 1);
  }
}

static void notes_write(void *context, uint64_t page, uint32_t count, const void *const *data) {
  struct state *state = context;
  for (uint64_t i = 0; i < count; i++) {
    char **kept = &state->kept[page + i];
    if (*kept == NULL)
      *kept = calloc(1, state->page);
    if (*kept == NULL) {
      quire_dsm_data_written(state->control, page + i, 1, "no memory");
      continue;
    }
    if (data[i] != NULL)
      memcpy(*kept, data[i], state->page);
    else
      memset(*kept, 0, state->page);
    quire_dsm_data_written(state->control, page + i, 1, NULL);
  }
}

static void notes_terminate(void *context) {
  struct state *state = context;
  for (uint64_t at = 0; state->kept != NULL && at * state->page < state->size; at++)
    free(state->kept[at]);
  free(state->kept);
}

/* file: it waits for the disk */

static void file_request(void *context, uint64_t page, uint32_t count, int write) {
  struct state *state = context;
  (void)write;
  char *contents = malloc(state->page);
  for (uint64_t at = page; at < page + count; at++) {
    ssize_t got = -1;
    if (contents != NULL)
      got = pread(state->file, contents, state->page, at * state->page);
    if (got < 0) {
      quire_dsm_data_error(state->control, at, 1, strerror(errno));
      continue;
    }
    memset(contents + got, 0, state->page - got);
    quire_dsm_data_provided(state->control, at, 1, contents, 1);
  }
  free(contents);
}

static void file_write(void *context, uint64_t page, uint32_t count, const void *const *data) {
  struct state *state = context;
  static const char zeros[2 << 20];
  for (uint64_t i = 0; i < count; i++) {
    uint64_t at = (page + i) * state->page, length = state->page;
    if (at + length > state->size)
      length = state->size - at;
    const void *from = data[i] != NULL ? data[i] : zeros;
    int failed = pwrite(state->file, from, length, at) != (ssize_t)length;
    quire_dsm_data_written(state->control, page + i, 1, failed ? strerror(errno) : NULL);
  }
}

static void file_init(void *context, quire_dsm_control *control, uint64_t size, uint64_t page) {
  begin(context, control, size, page);
  quire_dsm_set_attributes(control, QUIRE_DSM_MAY_WRITE | QUIRE_DSM_KEEPS);
}

static const struct quire_dsm_pager squares = {
    .init = squares_init,
    .data_request = squares_request,
};
static const struct quire_dsm_pager notes = {
    .init = notes_init,
    .data_request = notes_request,
    .data_write = notes_write,
    .terminate = notes_terminate,
};
static const struct quire_dsm_pager file = {
    .init = file_init,
    .data_request = file_request,
    .data_write = file_write,
    .may_wait = 1,
};

static void fail(const char *what) {
  fprintf(stderr, "pagers: %s: %s\n", what, quire_dsm_why());
  exit(1);
}

int main(int argc, char **argv) {
  static struct state of_squares, of_notes, of_file;
  if (argc != 3) {
    fprintf(stderr, "usage: pagers ADDRESS FILE\n");
    return 2;
  }
  struct stat about;
  of_file.file = open(argv[2], O_RDWR);
  if (of_file.file < 0 || fstat(of_file.file, &about) < 0 || about.st_size == 0) {
    fprintf(stderr, "pagers: %s: %s\n", argv[2], errno != 0 ? strerror(errno) : "it is empty");
    return 2;
  }
  quire_dsm_server *server = quire_dsm_server_new(NULL);
  if (server == NULL)
    fail("server");
  if (quire_dsm_server_offer(server, "squares", 1 << 20, NULL, "r", &squares, &of_squares) < 0)
    fail("squares");
  if (quire_dsm_server_offer(server, "notes", 1 << 20, NULL, "rw", &notes, &of_notes) < 0)
    fail("notes");
  if (quire_dsm_server_offer(server, "file", about.st_size, NULL, "rw", &file, &of_file) < 0)
    fail("file");
  const char *at = quire_dsm_server_start(server, argv[1]);
  if (at == NULL)
    fail(argv[1]);
  printf("serving at %s\n", at);
  fflush(stdout);
  while (getchar() != EOF)
    ;
  quire_dsm_server_end(server);
  return 0;
}
