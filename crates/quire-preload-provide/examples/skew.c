/* skew.so:PAGES - page colouring for matrices.
 *
 * Under page colouring, the pages of a column of a matrix all have the same colour if a
 * row is as long as a way of the cache, or a multiple of it: they throw each other out.
 * Programmers add a page to each row against that.  Here the frames are shifted instead,
 * by one colour for each row, and the program stays as it is.
 *
 * PAGES is the length of a row in pages; without it, as many as there are colours.  Rows
 * are counted from address 0, so the shift is right wherever the matrix begins. */
#include "quire_strategy.h"

struct skew {
  const struct quire_host *host;
  uint64_t row;
};

/* A decimal number; 0 where the text is none. */
static uint64_t number(const char *text) {
  uint64_t value = 0;
  for (; *text >= '0' && *text <= '9' && value < 1u << 30; text++)
    value = value * 10 + (uint64_t)(*text - '0');
  return *text == 0 ? value : 0;
}

static const char *create(const struct quire_host *host, void **state) {
  struct skew *skew = host->allocate(host, sizeof *skew);
  if (!skew)
    return "there is no memory";
  skew->host = host;
  skew->row = *host->argument ? number(host->argument) : host->colours;
  *state = skew;
  return skew->row ? 0 : "give the pages of a row after the colon, such as skew.so:16";
}

static uint32_t wanted(const void *state, const struct quire_request *request) {
  const struct skew *skew = state;
  uint64_t page = request->page / QUIRE_PAGE;
  return (uint32_t)((page + page / skew->row) % skew->host->colours);
}

static uint64_t choose(const void *state, uint64_t first, uint32_t order,
                       const struct quire_request *request) {
  const struct skew *skew = state;
  return skew->host->first_of_colour(skew->host, first, order, wanted(state, request));
}

const struct quire_strategy quire_strategy = {
    .abi_version = QUIRE_STRATEGY_ABI,
    .name = "skew",
    .create = create,
    .wanted = wanted,
    .choose = choose,
};
