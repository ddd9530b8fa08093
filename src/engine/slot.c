#include "engine/slot.h"

#define COPY_COST (1.0 / 64)  /* of a token copied, in tokens read */
#define WAIT_COST 64.0         /* of a moment for the disk, in tokens read */
#define COPY_WORTH_TOKENS 32  /* copying fewer is not worth a second state */

/* What is lost when a slot forgets `tokens`. */
static double value_of(int64_t tokens, uint64_t idle_turns)
{
    return 0.5 * (double)tokens * 8.0 / (8.0 + (double)idle_turns);
}

static double cost_of_waiting(const struct slot_view *v, int64_t kept)
{
    return v->is_saving && kept < v->held ? WAIT_COST : 0;
}

static double cost_in_place(const struct slot_view *v, int64_t n_prompt)
{
    return (double)(n_prompt - v->reusable) + value_of(v->held - v->reusable, v->idle_turns) + cost_of_waiting(v, v->reusable);
}

static double cost_of_copy(const struct slot_view *v, const struct slot_view *donor, int64_t n_prompt)
{
    return (double)(n_prompt - donor->reusable) + value_of(v->held, v->idle_turns) + cost_of_waiting(v, 0) + COPY_COST * (double)donor->reusable;
}

struct slot_choice slot_choose(const struct slot_view *views, int n, int64_t n_prompt)
{
    struct slot_choice best = {-1, -1};
    double best_cost = 0;
    for (int i = 0; i < n; i++) {
        if (views[i].is_busy)
            continue;
        double cost = cost_in_place(&views[i], n_prompt);
        if (best.slot < 0 || cost < best_cost) {
            best = (struct slot_choice){i, -1};
            best_cost = cost;
        }
        for (int d = 0; d < n; d++) {
            if (d == i || views[d].reusable < COPY_WORTH_TOKENS)
                continue;
            cost = cost_of_copy(&views[i], &views[d], n_prompt);
            if (cost < best_cost) {
                best = (struct slot_choice){i, d};
                best_cost = cost;
            }
        }
    }
    return best;
}

struct slot_choice slot_choose_fresh(const struct slot_view *views, int n, int64_t n_prompt)
{
    struct slot_choice best = {-1, -1};
    double best_cost = 0;
    for (int i = 0; i < n; i++) {
        struct slot_view fresh = views[i];
        fresh.common = fresh.reusable = 0;
        double cost = cost_in_place(&fresh, n_prompt);
        if (!fresh.is_busy && (best.slot < 0 || cost < best_cost)) {
            best.slot = i;
            best_cost = cost;
        }
    }
    return best;
}

int slot_victim(const struct slot_view *views, int n, int keep)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (views[i].is_busy || views[i].held == 0 || i == keep)
            continue;
        if (best < 0 || value_of(views[i].held, views[i].idle_turns) < value_of(views[best].held, views[best].idle_turns))
            best = i;
    }
    return best;
}
