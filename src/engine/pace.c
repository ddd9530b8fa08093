#include "engine/pace.h"

static void move_towards(double *value, double seen)
{
    *value = *value > 0 ? *value + 0.25 * (seen - *value) : seen;
}

void pace_note(struct pace *p, int64_t n_prompt, int64_t n_decode, double ms)
{
    if (n_prompt == 0)
        move_towards(&p->step_ms, ms);
    else if (n_decode == 0 && n_prompt >= PACE_MIN_ALONE)
        move_towards(&p->row_ms, ms / (double)n_prompt);
    else if (n_decode > 0 && p->step_ms > 0 && ms > p->step_ms) /* short chunks cost more a row than long ones: what counts here is what they added */
        move_towards(&p->row_ms, (ms - p->step_ms) / (double)n_prompt);
}

static int64_t between(double x, int64_t least, int64_t most)
{
    int64_t n = x < (double)most ? (int64_t)x : most;
    return n > least ? n : least < most ? least : most;
}

int64_t pace_rows(const struct pace *p, int64_t n_decode, int64_t most)
{
    if (n_decode == 0)
        return between(p->row_ms > 0 ? PACE_ALONE_MS / p->row_ms : 2 * PACE_MIN_ALONE, PACE_MIN_ALONE, most); /* nothing is known yet: a short one tells */
    return between(p->row_ms > 0 ? PACE_SHARE * p->step_ms / p->row_ms : 0, PACE_MIN_BESIDE, most);
}
