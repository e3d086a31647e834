/* quire.h: which physical frames memory gets, as a program asks for it itself.
 *
 *     #include <quire.h>
 *
 *     double *matrix = quire_alloc(bytes, "colour");
 *     if (matrix == NULL)
 *       matrix = mmap(...);            // the kernel's frames: see errno, or quire_check
 *     ...
 *     quire_free(matrix, bytes);
 *
 *     cc -I DIRECTORY_OF_THIS_FILE program.c -L DIRECTORY_OF_THE_LIBRARY -lquire_provide
 *
 * The program can be started as any other, with libquire_provide.so where the loader finds it, or
 * under `quire run`.  Linked or preloaded, the library does the same: its page sizes come
 * along (QUIRE_POLICY=base leaves them out).  malloc stays the program's, unless the program is
 * started with libquire_provide_jemalloc.so, which then does for both.
 *
 * A strategy is given by the text that `quire run --frames` takes: "colour",
 * "colour:hashed", "binhop", "binhop:thread", "modulo:0-3", "modulo:@FILE", "exact:FILE",
 * or "default" for the kernel's choice.  A plug-in can be named by its full path if the
 * program was started with it, by --frames or --hint.  The same text, with the same file
 * as before, stands for the same strategy: bin hopping goes on where it was.
 *
 *
 * Errors
 *
 * Functions that fail return -1, or NULL where they return a pointer, and set errno.
 * Nothing has changed then, and memory keeps the kernel's frames.  quire_check says in
 * words what is wrong.
 *
 *     EINVAL     no such strategy, a range that is not whole pages or none of a program's,
 *                a null pointer
 *     ERANGE     a colour that the cache does not have
 *     EBADMSG    the file holds no recorded mapping
 *     ENOENT, EACCES, ...  the file cannot be read or written
 *     EPERM      privilege is missing: userfaultfd for faults from kernel mode (root, or
 *                sysctl vm.unprivileged_userfaultfd=1), or frame numbers (CAP_SYS_ADMIN)
 *     ENOTSUP    the kernel is too old (Linux 6.8 moves pages), no cache has known
 *                colours, the plug-in is not loaded, or the process uses its memory in a
 *                way that cannot wait for Quire (it opened /proc/self/mem)
 *     EBUSY      other colour bits are in use
 *     ENODATA    nothing is there to record
 *     ENOMEM     no memory, or no thread
 *
 *
 * Threads, forks, signals
 *
 * All functions may be called by several threads at once.  None may be called in a signal
 * handler, nor in a child that vfork made.  A forked child goes on with everything that
 * was asked for; a program that is started by exec begins anew (what `quire run` was told
 * goes on there).  The first call that needs strategies starts a thread, `quire-frames`,
 * so it must not hold a lock that the program's malloc needs. */
#ifndef QUIRE_H
#define QUIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of what is declared here.  It grows when something is added; what is there
 * keeps its meaning. */
#define QUIRE_API 1

/* The version that the library has: at least QUIRE_API of the header that a program was
 * built with, or what is newer is missing. */
int quire_api(void);

/* Starts the service.  This is not needed, since every call that needs it does so, but it
 * tells early whether strategies can be had; and memory that is mapped from then on is
 * known, so that all of its pages can be moved.  0 or -1. */
int quire_start(void);

/* Whether a strategy can be used, without using it.  Where it cannot, -1 with errno, and
 * a line that says why and what to do is written to `why`, cut to `size` bytes with the
 * zero at the end.  `why` may be NULL.  Starts the service. */
int quire_check(const char *strategy, char *why, size_t size);


/* Colours */

/* How frames are coloured: the bits of the physical address, such as "12,13,14,15", or
 * "12^18,13^19" for a hashed index.  To be called before anything else: without it, the
 * user's --colour-bits hold, else the bits of this machine's own cache (`quire cache`).
 * EBUSY where other bits are in use. */
int quire_set_colour_bits(const char *bits);

/* How many colours there are, a power of two; 1 where no cache has known colours. */
int quire_colours(void);

/* The colour of a frame; QUIRE_COLOUR_UNKNOWN for QUIRE_FRAME_HIDDEN. */
uint32_t quire_colour_of(uint64_t frame);


/* Memory that gets a strategy */

/* The strategy of private anonymous memory that the program maps from now on, by mmap or
 * by malloc, where no hint is for it.  It takes the place of what --frames said; "default"
 * is the kernel's choice.  What the allocator holds already is not touched. */
int quire_set_default(const char *strategy);

/* The strategy of a range of whole pages, from now on: of memory that is there, for pages
 * that have not been touched, and of what is mapped there later, at an address that the
 * program names (MAP_FIXED, MAP_FIXED_NOREPLACE).  A later hint replaces an earlier one
 * where they overlap, and it comes before those of the command line.
 *
 * Name memory of your own only.  Memory that is there takes part if it was mapped since
 * the service began, or if all of the range is private anonymous memory; what is on
 * superpages of Quire's does not. */
int quire_hint(void *address, size_t size, const char *strategy);

/* Takes hints for a range back: its memory gets the kernel's frames from now on. */
int quire_unhint(void *address, size_t size);

/* Maps memory, zero, readable and writable, in whole pages, that gets its frames by a
 * strategy.  It is ordinary private memory: mprotect, madvise, mremap and munmap work. */
void *quire_alloc(size_t size, const char *strategy);

/* Unmaps memory that quire_alloc gave, or some pages of it.  `size` is rounded up to whole
 * pages, as quire_alloc does. */
int quire_free(void *address, size_t size);


/* What memory has */

/* The frame is not known: the page has none, or the kernel hides the number from those
 * without CAP_SYS_ADMIN. */
#define QUIRE_FRAME_HIDDEN UINT64_MAX
#define QUIRE_COLOUR_UNKNOWN UINT32_MAX

/* The page is there. */
#define QUIRE_PAGE_PRESENT 1u
/* The page is in swap. */
#define QUIRE_PAGE_SWAPPED 2u
/* Another process has the page as well, or it belongs to a file or to shared memory. */
#define QUIRE_PAGE_SHARED 4u
/* The kernel's page of zeros: the page was read and not written. */
#define QUIRE_PAGE_ZERO 8u
/* A superpage maps the page. */
#define QUIRE_PAGE_SUPER 16u

struct quire_page {
  uint64_t address;
  uint64_t frame;  /* Its number, or QUIRE_FRAME_HIDDEN. */
  uint32_t colour; /* Or QUIRE_COLOUR_UNKNOWN. */
  uint32_t flags;  /* QUIRE_PAGE_...; 0 for a page that is not there. */
};

/* Reads what the pages of a range have, in order of address, as far as they are mapped at
 * all.  `count` is how many fit at `pages`, and must be enough for the range.  Returns how
 * many were written, size / 4096, or -1. */
ssize_t quire_read_map(const void *address, size_t size, struct quire_page *pages,
                       size_t count);


/* Other frames for pages that are there */

/* Numbers of pages of 4096 bytes. */
struct quire_remap {
  uint64_t moved;       /* Got another frame. */
  uint64_t kept;        /* Had one that the strategy accepts. */
  uint64_t made_way;    /* Outside of the range: gave up a frame that was demanded. */
  uint64_t missing;     /* Nobody has written to; they get frames by the strategy then. */
  uint64_t left;        /* Stay as they are. */
  uint64_t left_ranges; /* How many ranges those are. */
};

/* Why pages are left. */
enum quire_reason {
  QUIRE_LEFT_FOREIGN = 1, /* Not memory that frames can be chosen for. */
  QUIRE_LEFT_SUPERPAGES,  /* On superpages of Quire's. */
  QUIRE_LEFT_SHARED,      /* A forked process has them as well. */
  QUIRE_LEFT_BUSY,        /* In use by the kernel or a device, or merged. */
  QUIRE_LEFT_PROTECTED,   /* Locked, read-only or executable. */
  QUIRE_LEFT_SWAPPED,     /* In swap. */
  QUIRE_LEFT_NO_FRAME,    /* No free frame is accepted by the strategy. */
  QUIRE_LEFT_CHANGED      /* The mapping ended or changed meanwhile. */
};

struct quire_left {
  uint64_t address;
  uint64_t pages;
  uint32_t reason; /* A quire_reason. */
  uint32_t unused;
};

/* Moves the pages of a range to frames by a strategy, and waits until that is done.  Other
 * threads may use the memory meanwhile.  Which memory takes part is as for quire_hint.
 * Pages of it that nobody has written to get frames by the strategy when somebody does.
 *
 * What became of the pages is written to `result`, and the first `capacity` ranges that
 * were left, in order of address, to `left`.  Both may be NULL.  It is no error that pages
 * are left, also all of them: 0. */
int quire_remap(void *address, size_t size, const char *strategy, struct quire_remap *result,
                struct quire_left *left, size_t capacity);

/* What a reason means, in words.  The text is a constant. */
const char *quire_left_text(uint32_t reason);


/* The same in a later run */

/* Writes which frames the pages of a range have to a file, as `quire map --csv` does, and
 * returns how many pages those are.  "modulo:@FILE" then asks for the same colours and
 * "exact:FILE" for the same frames at the same addresses, in this process or in a later
 * run.  Addresses are the same there if the program maps them itself (MAP_FIXED_NOREPLACE)
 * or runs under `setarch -R`.  Needs CAP_SYS_ADMIN.  A file of this name is replaced when
 * all is written. */
ssize_t quire_record(const void *address, size_t size, const char *file);

#ifdef __cplusplus
}
#endif

#endif
