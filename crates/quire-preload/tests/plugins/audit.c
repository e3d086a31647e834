/* An auditor of the loader, for LD_AUDIT: it has an instance of the C library of its own. */
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>

unsigned la_version(unsigned version) { return version; }

unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
  (void)map, (void)space, (void)cookie;
  free(malloc(100));
  return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
