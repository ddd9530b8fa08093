/* How many prompt rows go into a step, so that the running sequences keep their pace. Measured, pure but for what it has been told. */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

#include <stdint.h>

struct pace {
    double row_ms;     /* of a prompt row in a long chunk; 0 = not known yet */
    double step_ms;    /* of a step of generated tokens alone; 0 = not known yet */
};

/* What a step of n_prompt prompt rows beside n_decode generated ones took. */
void pace_note(struct pace *p, int64_t n_prompt, int64_t n_decode, double ms);

/* Prompt rows for the next step, at most `most`. Alone: about PACE_ALONE_MS, so that who leaves is noticed soon. Beside running sequences: what adds PACE_SHARE of a step of
 * theirs, so that they stay within twice their own time; a few rows always, or a prompt would never be read. */
int64_t pace_rows(const struct pace *p, int64_t n_decode, int64_t most);

#define PACE_ALONE_MS 400.0
#define PACE_SHARE 0.8
#define PACE_MIN_ALONE 32
#define PACE_MIN_BESIDE 4

#endif
