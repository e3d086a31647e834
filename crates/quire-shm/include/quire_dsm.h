/* quire_dsm.h: memory that programs on several machines share, in C.
 *
 *     #include <quire_dsm.h>
 *
 *     quire_dsm *server = quire_dsm_connect("127.0.0.1:7450", NULL);
 *     quire_dsm_create(server, "grid", 1 << 20, NULL);           // or it is there already
 *     quire_dsm_object *grid = quire_dsm_open(server, "grid", QUIRE_DSM_WRITE);
 *     double *cells = quire_dsm_address(grid);
 *     cells[0] = 1.0;                                            // everybody sees it
 *     quire_dsm_barrier(grid, "start", 4);
 *     ...
 *     quire_dsm_close(grid);
 *     quire_dsm_disconnect(server);
 *
 *     cc -I DIRECTORY_OF_THIS_FILE program.c -L DIRECTORY_OF_THE_LIBRARY -lquire_dsm
 *
 * A server is started with `quire serve`.  An object is a range of bytes that it keeps; each
 * of its pages exists in one version at any time.  A touch of a page that is elsewhere waits
 * until it is here, also inside of a system call.
 *
 *
 * Errors
 *
 * Functions that fail return -1, or NULL where they return a pointer, and set errno.
 * quire_dsm_why says in words what was wrong with the last call of this thread.
 *
 *     EHOSTUNREACH  the server cannot be reached, or the link to it broke
 *     ENOENT        no such object; a file of certificates that is not there
 *     EEXIST        there is such an object already
 *     EACCES        no right to it, or to change it; a certificate that is of no use
 *     EBUSY         it is open somewhere; the mutex is not free
 *     EINVAL        what was passed makes no sense
 *     ENOSPC        the server has no room
 *     EPERM         the mutex is not this program's; no right to userfaultfd
 *     EOWNERDEAD    somebody of the barrier is gone (see quire_dsm_mend)
 *     ENOTCONN      the link was given up
 *
 * Memory fails with SIGBUS when the server could not be reached for ten seconds, or has lost
 * a page for good; standard error says why.
 *
 *
 * Threads, forks, signals, the end
 *
 * All functions may be called by several threads at once, but for those that close what
 * others still use.  None may be called in a signal handler.  A program counts as one party
 * for mutexes and barriers for each time that it has opened an object: threads that
 * synchronise with each other open it once each.
 *
 * A child that is forked does not have the memory, and must connect anew; it must not use
 * what its parent made.  (Programs that `quire run --dsm` gives an object to, by their own
 * shm_open or shmget, keep it over forks.)
 *
 * What was written is given back to the server by quire_dsm_close and quire_dsm_flush, and
 * whenever somebody else wants it.  A program that ends without either loses what nobody
 * asked for. */
#ifndef QUIRE_DSM_H
#define QUIRE_DSM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of what is declared here.  It grows when something is added; what is there
 * keeps its meaning. */
#define QUIRE_DSM_API 1

/* The version that the library has. */
int quire_dsm_api(void);

/* Why the last call of this thread failed: a line for people, never NULL.  It is there until
 * the next call of this thread. */
const char *quire_dsm_why(void);


/* Servers */

/* A link to a server. */
typedef struct quire_dsm quire_dsm;

/* Who this program is.  What is NULL is as where no structure is passed. */
struct quire_dsm_identity {
  const char *name;        /* "program"; with TLS the certificate is for this name */
  const char *certificate; /* files in PEM form, all three or none: TLS is used then */
  const char *key;
  const char *ca;
  const char *tls;         /* "automatic": for addresses that other machines reach, which
                              is the usual; "everywhere"; "plaintext" */
};

/* Connects to a server: "HOST:PORT" or "unix:PATH". */
quire_dsm *quire_dsm_connect(const char *server, const struct quire_dsm_identity *who);

/* Ends the link.  All objects that were opened over it must be closed. */
void quire_dsm_disconnect(quire_dsm *server);


/* Objects */

/* How an object is made.  Zero and NULL stand for what is usual. */
struct quire_dsm_shape {
  uint64_t page_size;    /* bytes, a power of two, 4096 to 2 MiB; 4096 */
  const char *scheduler; /* "simple", "multi" or "distributed"; "multi" */
  const char *types;     /* as for quire_dsm_tag; NULL: none */
};

/* Makes an object of so many bytes, which are zero. */
int quire_dsm_create(quire_dsm *server, const char *name, uint64_t size,
                     const struct quire_dsm_shape *shape);

/* Removes an object that nobody has open. */
int quire_dsm_remove(quire_dsm *server, const char *name);

/* Says of which types the data of an object are, such as "float64:0-4M,int32:4M-5M", or
 * "int32" for all of it.  Machines that write numbers in other ways get them translated. */
int quire_dsm_tag(quire_dsm *server, const char *name, const char *types);

/* Says what somebody may do to an object: "r", "rw" or "none".  Whom: the name in a
 * certificate, "uid:NUMBER" for a user of the server's machine, or "anyone". */
int quire_dsm_grant(quire_dsm *server, const char *name, const char *to, const char *rights);

/* An object that is open. */
typedef struct quire_dsm_object quire_dsm_object;

#define QUIRE_DSM_READ 1
#define QUIRE_DSM_WRITE 3 /* to read and write */

/* Opens an object, and maps all of it. */
quire_dsm_object *quire_dsm_open(quire_dsm *server, const char *name, int rights);

/* Where it is mapped, and its size in bytes. */
void *quire_dsm_address(quire_dsm_object *object);
uint64_t quire_dsm_size(quire_dsm_object *object);

/* Maps a part of it once more, at an address where nothing is mapped, or where there is room
 * (NULL).  Offset, length and address are multiples of 4096.  All mappings of an object show
 * the same memory. */
void *quire_dsm_map(quire_dsm_object *object, uint64_t offset, uint64_t length, void *address);

/* Unmaps what quire_dsm_map has mapped. */
int quire_dsm_unmap(quire_dsm_object *object, void *address);

/* Gives back all that was written, and waits until the server has it. */
int quire_dsm_flush(quire_dsm_object *object);

/* Gives all back, unmaps it and closes it. */
int quire_dsm_close(quire_dsm_object *object);


/* Synchronising
 *
 * The server keeps mutexes, conditions, barriers and counters of an object, by names of 1 to
 * 255 bytes.  They need not be made.  Nobody spins on a page that all want. */

/* Waits until so many have arrived. */
int quire_dsm_barrier(quire_dsm_object *object, const char *barrier, uint32_t parties);

/* Makes a barrier whole again that broke because somebody was gone. */
int quire_dsm_mend(quire_dsm_object *object, const char *barrier);

/* The mutex is held, but whoever held it before is gone without giving it back: what it
 * protects may be half done. */
#define QUIRE_DSM_ABANDONED 1

/* Waits for a mutex, or takes it only if it is free (EBUSY).  0, QUIRE_DSM_ABANDONED or -1. */
int quire_dsm_lock(quire_dsm_object *object, const char *mutex);
int quire_dsm_try_lock(quire_dsm_object *object, const char *mutex);
int quire_dsm_unlock(quire_dsm_object *object, const char *mutex);

/* Gives a mutex up until somebody signals the condition, and waits until it is held again. */
int quire_dsm_wait(quire_dsm_object *object, const char *condition, const char *mutex);

/* So many of those who wait for a condition go on; 0 stands for all of them. */
int quire_dsm_signal(quire_dsm_object *object, const char *condition, uint32_t count);

/* Adds to a counter, which is 0 at first.  What it is then goes to `value`, if that is not
 * NULL. */
int quire_dsm_add(quire_dsm_object *object, const char *counter, int64_t by, int64_t *value);

/* Waits until a counter is at least so much. */
int quire_dsm_at_least(quire_dsm_object *object, const char *counter, int64_t least,
                       int64_t *value);

#ifdef __cplusplus
}
#endif

#endif
