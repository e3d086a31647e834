/* quire_strategy.h: strategies of your own for `quire run --frames ./mine.so`.
 *
 * A plug-in is a shared library that decides which physical frame a page gets when it
 * is first touched.  It has one symbol, `quire_strategy`, with a version and a few
 * functions:
 *
 *     #include "quire_strategy.h"
 *
 *     // The colour that the page's own number has: page colouring.
 *     static uint64_t choose(const void *state, uint64_t first, uint32_t order,
 *                            const struct quire_request *request) {
 *       const struct quire_host *host = state;
 *       uint32_t colour = request->page / QUIRE_PAGE % host->colours;
 *       return host->first_of_colour(host, first, order, colour);
 *     }
 *
 *     static const char *create(const struct quire_host *host, void **state) {
 *       *state = (void *)host;
 *       return 0;
 *     }
 *
 *     const struct quire_strategy quire_strategy = {
 *       .abi_version = QUIRE_STRATEGY_ABI,
 *       .name = "mine",
 *       .create = create,
 *       .choose = choose,
 *     };
 *
 *     cc -shared -fPIC -O2 -I DIRECTORY_OF_THIS_FILE -o mine.so mine.c
 *     quire run --frames ./mine.so -- ./program
 *     quire run --hint heap=./mine.so:ARGUMENT -- ./program
 *
 * `examples/` beside this directory has two that do more.
 *
 *
 * What a plug-in must keep to
 *
 * Its functions decide about pages that threads of the program are waiting for.  While
 * they run, memory of the program can be missing, and who touches it waits for the very
 * thread that runs them: for ever.  So:
 *
 *  - No malloc, no free, and nothing that may call them (stdio, C++ `new`, dlopen, ...):
 *    the program's heap can be such memory.  `host->allocate` gives memory that never
 *    waits.  This holds for `create`, too, which can run inside of the program's mmap.
 *  - No thread-local variables other than errno: the first use of one calls malloc.
 *  - No lock that a thread of the program may hold, and no pointer to its memory.
 *  - No use of file descriptors outside of `create`: Quire's thread has a table of its
 *    own, in which those of the process do not exist.  The plug-in's own static data
 *    and its code may be used freely.
 *  - No more than 64 KiB of stack, no signals, no fork, and no exception or longjmp out
 *    of a function.
 *
 * `create` runs on a thread of the program, before the process has pages that wait; all
 * others run on one thread of Quire's, never two at a time for one state.  A forked
 * child calls `create` again and does not see what the parent's state has become; the
 * library's static data is as the parent left it at that moment, perhaps in the middle
 * of a call.  So what changes belongs into the state. */
#ifndef QUIRE_STRATEGY_H
#define QUIRE_STRATEGY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of what is declared here.  Quire refuses plug-ins of another one. */
#define QUIRE_STRATEGY_ABI 1

/* The size of a page and of a frame, in bytes. */
#define QUIRE_PAGE 4096

/* The largest order of a block of frames. */
#define QUIRE_MAX_ORDER 9

/* No frame of a block may be used. */
#define QUIRE_NO_FRAME UINT64_MAX

/* Only `choose` can tell which frames the page may get. */
#define QUIRE_ANY_COLOUR UINT32_MAX

/* A flag: what a page gets depends on which pages got theirs before. */
#define QUIRE_DEPENDS_ON_ORDER 1u

/* A page that needs a frame. */
struct quire_request {
  uint64_t page;   /* Its address, a multiple of QUIRE_PAGE. */
  uint32_t thread; /* The thread that touched it, by its number in Linux. */
  uint32_t unused;
};

/* What Quire lends to a plug-in, from `create` until `destroy` has returned.  Each use
 * of the plug-in has its own: `--frames ./a.so:1 --hint heap=./a.so:2` makes two. */
struct quire_host {
  /* How many colours frames have: a power of two, 1 where the machine shows none. */
  uint32_t colours;
  /* The number of the process. */
  uint32_t process;
  /* The text after the colon in `./mine.so:TEXT`, empty where there is none. */
  const char *argument;
  /* The colour of a frame, below `colours`. */
  uint32_t (*colour_of)(const struct quire_host *host, uint64_t frame);
  /* The first frame of a colour in a block; QUIRE_NO_FRAME where the block has none. */
  uint64_t (*first_of_colour)(const struct quire_host *host, uint64_t first, uint32_t order,
                              uint32_t colour);
  /* Memory of so many bytes, all zero, aligned to 16.  It lasts until `destroy` has
   * returned and cannot be freed before.  NULL where there is none. */
  void *(*allocate)(const struct quire_host *host, size_t bytes);
};

/* A strategy.  `choose` and `name` must be there; what else is NULL is left out. */
struct quire_strategy {
  /* QUIRE_STRATEGY_ABI. */
  uint32_t abi_version;

  /* QUIRE_DEPENDS_ON_ORDER or 0.  Without it, pages that follow a touched one can be
   * given frames before they are touched, by the requests of the thread that touched
   * the first; that is many times as fast. */
  uint32_t flags;

  /* What messages call the strategy. */
  const char *name;

  /* Makes the state for one process.  NULL says that it is done; a text, one line, says
   * why it cannot be, as when the argument makes no sense.  `quire run` tries this
   * before it starts the program, and shows the text.  Without this function the state
   * is NULL. */
  const char *(*create)(const struct quire_host *host, void **state);

  /* The one colour of which the page may get a frame, or QUIRE_ANY_COLOUR.  Blocks
   * without that colour are then not offered, which saves time; `choose` decides. */
  uint32_t (*wanted)(const void *state, const struct quire_request *request);

  /* Which frame of a free block the page may get: one of the 1 << order frames from
   * `first` on, or QUIRE_NO_FRAME.  Anything else counts as QUIRE_NO_FRAME.
   *
   * Frames are numbered as the kernel does; where it hides the numbers, only the lowest
   * nine bits are true.  For one page blocks are offered one after the other, the
   * smallest first, perhaps more than once; each is to be judged as if it were the only
   * one.  Nothing may change: the page can still get another frame, or none. */
  uint64_t (*choose)(const void *state, uint64_t first, uint32_t order,
                     const struct quire_request *request);

  /* The page got this frame, whether it was chosen or `choose` refused all there are. */
  void (*note)(void *state, uint64_t frame, const struct quire_request *request);

  /* The state is needed no more.  Not called at the end of a process. */
  void (*destroy)(void *state);
};

/* The symbol by which Quire finds the strategy. */
extern const struct quire_strategy quire_strategy __attribute__((visibility("default")));

#ifdef __cplusplus
}
#endif

#endif
