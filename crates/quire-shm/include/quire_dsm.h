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
 *     EBUSY         it is open somewhere; the mutex is not free; a heap of it is open
 *     EINVAL        what was passed makes no sense
 *     ENOSPC        the server has no room
 *     EPERM         the mutex is not this program's; no right to userfaultfd
 *     EOWNERDEAD    somebody of the barrier is gone (see quire_dsm_mend)
 *     ENOTCONN      the link was given up; or the object, for good: close it, and open it again
 *     EAGAIN        not now: a server does not answer, or a lock cannot be had
 *     EADDRINUSE    somebody listens there already
 *     ENOMEM, ENOTEMPTY, ESTALE, EIO  see the typed heap
 *
 * Memory fails with SIGBUS when the server could not be reached for three of its leases (12 s),
 * or has lost a page for good; standard error says why.  Until then calls about an object fail with
 * EHOSTUNREACH, and may do well later.  Where the program shares the server's copy (at a Unix
 * socket, unless quire_dsm_connect_apart was called), the object is given up then: all calls about
 * it fail with ENOTCONN from then on, also when the server is back, which the link itself outlives.
 * It is closed, with the same error, and opened again.
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
#define QUIRE_DSM_API 4

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

/* Connects to a server: "HOST:PORT" or "unix:PATH".  Several servers that are joined stand with
 * commas between: the first that answers is used, and another one when it fails.  A comma in a
 * PATH is written twice.
 * With a server on their machine, unless they use TLS, programs share its copy of each page of
 * objects that they may write to. */
quire_dsm *quire_dsm_connect(const char *server, const struct quire_dsm_identity *who);

/* The same with pages of the program's own in any case (since 3). */
quire_dsm *quire_dsm_connect_apart(const char *server, const struct quire_dsm_identity *who);

/* Ends the link.  All objects that were opened over it must be closed. */
void quire_dsm_disconnect(quire_dsm *server);


/* Objects */

/* How an object is made.  Zero and NULL stand for what is usual. */
struct quire_dsm_shape {
  uint64_t page_size;    /* bytes, a power of two, 4096 to 2 MiB; 4096 */
  const char *scheduler; /* "simple", "multi", "distributed" or "usual"; "usual" */
  const char *types;     /* as for quire_dsm_tag; NULL: none */
};

/* Makes an object of so many bytes, which are zero. */
int quire_dsm_create(quire_dsm *server, const char *name, uint64_t size,
                     const struct quire_dsm_shape *shape);

/* Gives the server of this link a part in an object that other servers have (paper 003's
 * memory_object_replicate).  Opening an object there does so by itself; this does it ahead of
 * time.  The object has the scheduler "distributed", and the servers are joined (`quire serve
 * --peers` or `--etcd`).  Its pages come when they are touched. */
int quire_dsm_replicate(quire_dsm *server, const char *name);

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

/* Opens an object, and maps all of it.  Memory of one that is opened to read cannot be made
 * writable (mprotect: EACCES). */
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

/* Says that a part, in bytes, will be read, or written, soon and in order.  What this machine
 * lacks of it is asked for and comes while the program goes on, so that touches need not wait
 * for it.  A hint: nothing fails for it, and what is beyond the object's end is nothing.  A
 * part that this program writes whole is best asked for with QUIRE_DSM_WRITE before: it comes
 * with the right to write, from whoever has it. */
int quire_dsm_will_need(quire_dsm_object *object, uint64_t offset, uint64_t length, int rights);

/* Gives back all that was written, and waits until the server has it.  Where the link broke since
 * the object was opened or flushed the last time, though it may be there again, this fails once,
 * with EHOSTUNREACH: what was written before may be lost. */
int quire_dsm_flush(quire_dsm_object *object);

/* Gives all back, unmaps it and closes it.  When this fails as quire_dsm_flush would (EHOSTUNREACH,
 * EIO and so on), it is closed all the same, and what was written since it was last given back may
 * be lost.  With EBUSY or EINVAL nothing is closed: a heap of it is open, or it is NULL. */
int quire_dsm_close(quire_dsm_object *object);


/* Synchronising
 *
 * The server keeps mutexes, conditions, barriers and counters of an object, by names of 1 to
 * 255 bytes.  They need not be made.  Who may not write to the object may not synchronise (EACCES),
 * and there is an end to how many names there are (ENOSPC).  Nobody spins on a page that all want.
 *
 * Locks of the C library that lie in the object's memory (pthread_mutex_t, pthread_cond_t,
 * pthread_rwlock_t, pthread_barrier_t, sem_t) work for all programs that share it, too, where the
 * library comes before the C library among those that the program is linked with, as it does by
 * -lquire_dsm.  Who waits for one looks again every 4 ms at most; robust ones are refused
 * (ENOTSUP): only those here tell of an owner that is gone. */

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


/* The typed heap
 *
 *     quire_dsm_heap *heap = quire_dsm_heap_open(object);
 *     double *numbers = quire_dsm_tmalloc(heap, QUIRE_DSM_FLOAT64, 1000);
 *     int64_t offset = (char *)numbers - (char *)quire_dsm_address(object);
 *     quire_dsm_add(object, "numbers", offset, NULL);     // others find it there
 *
 * It allocates memory of an object by type, for all programs that share the object.  Machines
 * that write numbers in other ways get them translated by these types.  Each type and size has
 * a free list of its own; those who allocate of different lists do not wait for each other.
 *
 * A block is a pointer into the object where it was opened; in another program it has the same
 * offset from quire_dsm_address.  Counters are a good place for the offsets of first blocks.
 *
 *     ENOMEM     there is no room
 *     EINVAL     no block begins there, or it is not in use; the object is too small
 *     ENOTEMPTY  the object has other contents: a heap takes all of an object that is zeros
 *     EACCES     the object is open to be read only
 *     EAGAIN     a lock or a type is refused
 *     ESTALE     a link broke, or a server is gone, so others may have taken over what this heap
 *                had: close it and open it anew; blocks that are in use stay
 *     EIO        something wrote over the heap: use a new object */
typedef struct quire_dsm_heap quire_dsm_heap;

/* Of which type the elements of a block are. */
#define QUIRE_DSM_UNTYPED 0 /* bytes, which are never translated */
#define QUIRE_DSM_INT8 1
#define QUIRE_DSM_INT16 2
#define QUIRE_DSM_INT32 3
#define QUIRE_DSM_INT64 4
#define QUIRE_DSM_FLOAT32 5
#define QUIRE_DSM_FLOAT64 6

/* Opens the heap of an object that may be written to.  Where there is none yet, it is made.
 * The heap is closed before the object.  Threads may share it. */
quire_dsm_heap *quire_dsm_heap_open(quire_dsm_object *object);

/* Gives back what the heap has ready; what was allocated stays. */
int quire_dsm_heap_close(quire_dsm_heap *heap);

/* Room for so many elements.  What they hold is left over from earlier, or zero. */
void *quire_dsm_tmalloc(quire_dsm_heap *heap, int type, uint64_t count);

/* Frees a block, whoever allocated it, on whatever machine. */
int quire_dsm_tfree(quire_dsm_heap *heap, void *block);

/* Of which type a block is, and how many elements have room in it: as many as were asked for,
 * or more.  Either may be NULL. */
int quire_dsm_block(quire_dsm_heap *heap, const void *block, int *type, uint64_t *count);

/* The size of all pages that belong to no block, in bytes; or -1. */
int64_t quire_dsm_free_space(quire_dsm_heap *heap);

/* Takes over what heaps of programs had ready that are dead.  Their blocks stay in use.  Says
 * how many of them there were.  Where there is no room, quire_dsm_tmalloc does so by itself. */
int quire_dsm_recover(quire_dsm_heap *heap);


/* Pagers
 *
 * A program can be a server itself, whose objects hold what the program likes: a file, the
 * result of a computation, what it has compressed.  For each object it gives functions by which
 * it is told what is needed, and answers by the functions below.  The names are those of the
 * external pager interface (paper 003, Figure 1), without memory_object_.
 *
 *     quire_dsm_server *server = quire_dsm_server_new(NULL);
 *     quire_dsm_server_offer(server, "squares", 1 << 20, NULL, "r", &pager, &state);
 *     puts(quire_dsm_server_start(server, "127.0.0.1:0"));   // where others connect to
 *     ...
 *     quire_dsm_server_end(server);
 *
 * The functions of one pager are called one after the other, by a thread of the library.  They
 * must not wait, unless `may_wait` gives the pager a thread of its own.  An answer may come at
 * once, later, in pieces, and from any thread.  What is owed for ten seconds counts as an
 * error: touches of the memory fail then.  Pages are counted from 0. */
typedef struct quire_dsm_server quire_dsm_server;

/* The way from a pager to whoever uses its object. */
typedef struct quire_dsm_control quire_dsm_control;

struct quire_dsm_pager {
  /* The object is used for the first time: the sizes of it and of its pages, in bytes.  The
   * pager keeps the control, and says quire_dsm_set_attributes. */
  void (*init)(void *context, quire_dsm_control *control, uint64_t size, uint64_t page_size);
  /* Pages are needed, to be read, or to be written to as well.  Each is answered once: with
   * quire_dsm_data_provided, quire_dsm_data_unavailable or quire_dsm_data_error. */
  void (*data_request)(void *context, uint64_t page, uint32_t count, int write);
  /* Pages that were provided to be read are to be written to.  Answered with
   * quire_dsm_lock_request and QUIRE_DSM_ALLOW_WRITE, or quire_dsm_data_error.  NULL: the
   * latter. */
  void (*data_unlock)(void *context, uint64_t page, uint32_t count);
  /* Pages come back that were written: a pointer to the contents of each, which are there until
   * this returns; NULL stands for zeros.  Answered with quire_dsm_data_written.  NULL: they are
   * refused. */
  void (*data_write)(void *context, uint64_t page, uint32_t count, const void *const *data);
  /* What quire_dsm_lock_request with QUIRE_DSM_FLUSH asked for is done.  May be NULL. */
  void (*lock_completed)(void *context, uint64_t page, uint32_t count);
  /* The pager is used no more; the control must not be used when this has returned.  It is
   * called once, also where there was no init.  May be NULL. */
  void (*terminate)(void *context);
  /* Not 0: the functions above may wait, as for a disk. */
  int may_wait;
};

/* A server, which has not started yet.  `who` holds its name and, for addresses that other
 * machines reach, its certificate; it may be NULL. */
quire_dsm_server *quire_dsm_server_new(const struct quire_dsm_identity *who);

/* Has the server offer an object.  `anyone` is what everybody may do to it: "r", "rw" or "none"
 * (NULL); this user, over a Unix socket, may do everything.  The structure is copied, and
 * `context` is passed to its functions.  When this fails, none of them is called. */
int quire_dsm_server_offer(quire_dsm_server *server, const char *name, uint64_t size,
                           const struct quire_dsm_shape *shape, const char *anyone,
                           const struct quire_dsm_pager *pager, void *context);

/* Starts it at an address.  Says where it is reached, which is another address if that had port
 * 0; the text lives as long as the server.  A server that cannot start can only be ended; its
 * pagers have terminated then. */
const char *quire_dsm_server_start(quire_dsm_server *server, const char *address);

/* Ends it: everybody's link is closed, and the pagers terminate. */
int quire_dsm_server_end(quire_dsm_server *server);

#define QUIRE_DSM_MAY_WRITE 1 /* the pager takes pages back */
#define QUIRE_DSM_KEEPS 2     /* it still has what it provided, and provides it again */

/* The pager is ready; both attributes may be joined by |. */
int quire_dsm_set_attributes(quire_dsm_control *control, int attributes);

/* What pages hold, one after the other.  They are copied.  Unless `write`, they must not be
 * written to before data_unlock was answered. */
int quire_dsm_data_provided(quire_dsm_control *control, uint64_t page, uint32_t count,
                            const void *data, int write);

/* Pages that nobody has written: zeros, which may be written to. */
int quire_dsm_data_unavailable(quire_dsm_control *control, uint64_t page, uint32_t count);

/* What pages hold cannot be had, or they cannot be written to, for this reason. */
int quire_dsm_data_error(quire_dsm_control *control, uint64_t page, uint32_t count,
                         const char *why);

/* What came by data_write is safe (NULL), or why it is not. */
int quire_dsm_data_written(quire_dsm_control *control, uint64_t page, uint32_t count,
                           const char *why);

#define QUIRE_DSM_FLUSH 1       /* pages are to come back; answered by lock_completed */
#define QUIRE_DSM_ALLOW_WRITE 2 /* pages may be written to */
int quire_dsm_lock_request(quire_dsm_control *control, uint64_t page, uint32_t count, int lock);

#ifdef __cplusplus
}
#endif

#endif
