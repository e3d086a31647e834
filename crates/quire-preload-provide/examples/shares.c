/* shares.so:N - a share of the cache for each thread.
 *
 * The colours are divided into N equal shares.  The first thread that touches a page
 * gets the first share for all pages that it touches first, the next thread the next
 * one, and after N threads it begins again.  Threads of different shares do not throw
 * each other's lines out.  Within its share a thread goes from colour to colour, as bin
 * hopping does.
 *
 * N is a power of two and no more than there are colours; without it, 2. */
#include "quire_strategy.h"

#include <stdlib.h>

/* Threads after these take their share by their number. */
#define KNOWN 1024

struct shares {
  const struct quire_host *host;
  uint32_t count; /* How many shares. */
  uint32_t size;  /* How many colours each has. */
  uint32_t threads;
  struct {
    uint32_t thread;
    uint32_t pages; /* How many got their frame. */
  } known[KNOWN];
};

static const char *create(const struct quire_host *host, void **state) {
  struct shares *shares = host->allocate(host, sizeof *shares);
  if (!shares)
    return "there is no memory";
  char *end;
  unsigned long count = *host->argument ? strtoul(host->argument, &end, 10) : 2;
  if (*host->argument && *end)
    count = 0;
  if (count == 0 || count > host->colours || (count & (count - 1)) != 0)
    return "the number of shares must be a power of two and no more than the colours, such as shares.so:2";
  shares->host = host;
  shares->count = (uint32_t)count;
  shares->size = host->colours / shares->count;
  *state = shares;
  return 0;
}

/* The place of a thread; `threads` where it is new. */
static uint32_t place(const struct shares *shares, uint32_t thread) {
  uint32_t n = 0;
  while (n < shares->threads && shares->known[n].thread != thread)
    n++;
  return n;
}

static uint32_t wanted(const void *state, const struct quire_request *request) {
  const struct shares *shares = state;
  uint32_t n = place(shares, request->thread);
  uint32_t pages = n < shares->threads ? shares->known[n].pages : 0;
  if (n == KNOWN)
    n = request->thread;
  return n % shares->count * shares->size + pages % shares->size;
}

static uint64_t choose(const void *state, uint64_t first, uint32_t order,
                       const struct quire_request *request) {
  const struct shares *shares = state;
  return shares->host->first_of_colour(shares->host, first, order, wanted(state, request));
}

static void note(void *state, uint64_t frame, const struct quire_request *request) {
  struct shares *shares = state;
  uint32_t n = place(shares, request->thread);
  (void)frame;
  if (n == KNOWN)
    return;
  if (n == shares->threads) {
    shares->threads++;
    shares->known[n].thread = request->thread;
  }
  shares->known[n].pages++;
}

const struct quire_strategy quire_strategy = {
    .abi_version = QUIRE_STRATEGY_ABI,
    .flags = QUIRE_DEPENDS_ON_ORDER,
    .name = "shares",
    .create = create,
    .wanted = wanted,
    .choose = choose,
    .note = note,
};
