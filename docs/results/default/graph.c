// Breadth-first search, connected components and PageRank on a random graph of 2^20 nodes and 2^23 edges.
// graph [ROUNDS]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 1 << 20, EDGES = 8 << 20, NONE = -1 };

static uint32_t *from, *to, *first, *next_of, *queue, *component;
static int32_t *distance;
static float *rank, *gained;

static uint32_t draw(void) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 32;
}

static void build(void) {
    for (size_t i = 0; i < EDGES; i++) {
        from[i] = draw() % NODES;
        to[i] = draw() % NODES;
        first[from[i] + 1]++;
        first[to[i] + 1]++;
    }
    for (size_t i = 0; i < NODES; i++)
        first[i + 1] += first[i];
    uint32_t *place = malloc(NODES * sizeof *place);
    memcpy(place, first, NODES * sizeof *place);
    for (size_t i = 0; i < EDGES; i++) {
        next_of[place[from[i]]++] = to[i];
        next_of[place[to[i]]++] = from[i];
    }
    free(place);
}

static size_t search(uint32_t source) {
    size_t head = 0, tail = 0;
    memset(distance, NONE, NODES * sizeof *distance);
    distance[source] = 0;
    queue[tail++] = source;
    while (head < tail) {
        uint32_t node = queue[head++];
        for (uint32_t e = first[node]; e < first[node + 1]; e++)
            if (distance[next_of[e]] == NONE) {
                distance[next_of[e]] = distance[node] + 1;
                queue[tail++] = next_of[e];
            }
    }
    return tail;
}

static uint32_t components(void) {
    int changed = 1;
    for (uint32_t i = 0; i < NODES; i++)
        component[i] = i;
    while (changed) {
        changed = 0;
        for (size_t i = 0; i < EDGES; i++) {
            uint32_t a = component[from[i]], b = component[to[i]];
            if (a != b) {
                component[a < b ? to[i] : from[i]] = a < b ? a : b;
                changed = 1;
            }
        }
    }
    return component[NODES - 1];
}

static float page_rank(void) {
    memset(gained, 0, NODES * sizeof *gained);
    for (size_t node = 0; node < NODES; node++) {
        uint32_t degree = first[node + 1] - first[node];
        float share = degree ? rank[node] / degree : 0;
        for (uint32_t e = first[node]; e < first[node + 1]; e++)
            gained[next_of[e]] += share;
    }
    for (size_t node = 0; node < NODES; node++)
        rank[node] = 0.15f / NODES + 0.85f * gained[node];
    return rank[0];
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 2;
    from = malloc(EDGES * sizeof *from);
    to = malloc(EDGES * sizeof *to);
    next_of = malloc(2 * EDGES * sizeof *next_of);
    first = calloc(NODES + 1, sizeof *first);
    queue = malloc(NODES * sizeof *queue);
    component = malloc(NODES * sizeof *component);
    distance = malloc(NODES * sizeof *distance);
    rank = malloc(NODES * sizeof *rank);
    gained = malloc(NODES * sizeof *gained);
    build();
    for (size_t node = 0; node < NODES; node++)
        rank[node] = 1.0f / NODES;
    double sum = 0;
    for (int round = 0; round < rounds; round++)
        sum += search(round) + components() + page_rank();
    printf("%g\n", sum);
    return 0;
}
