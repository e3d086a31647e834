/* Multiplies two square matrices of doubles, down the columns of the second
 * one (paper 001), or in blocks of 64.
 *
 *   gcc -O2 -o matmul examples/matmul.c
 *   ./matmul 2048 [columns|blocks] [rows]
 *
 * `rows` bounds how many rows of the product are computed. Prints a checksum
 * that does not depend on the order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64

static void by_columns(const double *a, const double *b, double *c, size_t n, size_t rows) {
  for (size_t i = 0; i < rows; i++)
    for (size_t j = 0; j < n; j++) {
      double sum = 0;
      for (size_t k = 0; k < n; k++)
        sum += a[i * n + k] * b[k * n + j];
      c[i * n + j] = sum;
    }
}

static size_t end_of(size_t block, size_t limit) {
  return block + BLOCK < limit ? block + BLOCK : limit;
}

static void by_blocks(const double *a, const double *b, double *c, size_t n, size_t rows) {
  for (size_t ib = 0; ib < rows; ib += BLOCK)
    for (size_t kb = 0; kb < n; kb += BLOCK)
      for (size_t jb = 0; jb < n; jb += BLOCK)
        for (size_t i = ib; i < end_of(ib, rows); i++)
          for (size_t k = kb; k < end_of(kb, n); k++)
            for (size_t j = jb; j < end_of(jb, n); j++)
              c[i * n + j] += a[i * n + k] * b[k * n + j];
}

int main(int argc, char **argv) {
  size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 2048;
  int blocked = argc > 2 && strcmp(argv[2], "blocks") == 0;
  size_t rows = argc > 3 ? strtoul(argv[3], NULL, 10) : n;
  if (n == 0 || n > 32768 || rows > n) {
    fprintf(stderr, "usage: matmul N [columns|blocks] [rows up to N]\n");
    return 2;
  }
  double *a = malloc(n * n * sizeof *a);
  double *b = malloc(n * n * sizeof *b);
  double *c = calloc(n * n, sizeof *c);
  if (!a || !b || !c) {
    perror("matmul");
    return 1;
  }
  for (size_t i = 0; i < n * n; i++) {
    a[i] = (double)(i % 7);
    b[i] = (double)(i % 5);
  }
  if (blocked)
    by_blocks(a, b, c, n, rows);
  else
    by_columns(a, b, c, n, rows);
  double sum = 0;
  for (size_t i = 0; i < rows * n; i++)
    sum += c[i];
  printf("%.0f\n", sum);
  return 0;
}
