/* The random operations of stress.c, on regions of more than 1 GiB. */
#define GIGA
#include "stress.c"
