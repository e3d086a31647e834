/* A plug-in that answers nonsense: frames beside the block, frames that do not exist,
 * colours that there are not, and another answer each time. */
#include "quire_strategy.h"

static uint64_t asked;

static uint32_t wanted(const void *state, const struct quire_request *request) {
  (void)state;
  return (uint32_t)(request->page / QUIRE_PAGE + asked++) % 32;
}

static uint64_t choose(const void *state, uint64_t first, uint32_t order,
                       const struct quire_request *request) {
  (void)state, (void)request;
  switch (asked++ % 5) {
  case 0: return first + ((uint64_t)1 << order);
  case 1: return first - 1;
  case 2: return QUIRE_NO_FRAME - 1;
  case 3: return first ^ 512;
  default: return first + asked % ((uint64_t)1 << order);
  }
}

const struct quire_strategy quire_strategy = {
    .abi_version = QUIRE_STRATEGY_ABI,
    .name = "liar",
    .wanted = wanted,
    .choose = choose,
};
