/* A plug-in that allocates, and frees what others have allocated. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *made(int number);
int reads(void);
void gone(char *block);
char *grown(char *block, size_t size);

char *made(int number) {
  char *text = NULL;
  if (asprintf(&text, "value %d", number) < 0)
    return NULL;
  char *copy = strdup(text);
  free(text);
  return copy;
}

int reads(void) {
  char *line = NULL;
  size_t size = 0;
  FILE *file = fopen("/proc/self/status", "r");
  if (file == NULL)
    return 1;
  while (getline(&line, &size, file) > 0)
    ;
  free(line);
  fclose(file);
  return 0;
}

void gone(char *block) { free(block); }

char *grown(char *block, size_t size) { return realloc(block, size); }
