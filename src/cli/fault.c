/* --debug: memory that runs out on purpose, so that what happens then can be seen from outside. */
#include <string.h>

#include "base/mem.h"
#include "cli/common.h"

enum { ALLOC_CEILING, ALLOC_FAIL_ABOVE, ALLOC_FAIL_NTH, N_FAULTS };

static const struct opt_spec faults[N_FAULTS] = {
    [ALLOC_CEILING] = {.name = "debug alloc-ceiling", .type = OPT_SIZE},
    [ALLOC_FAIL_ABOVE] = {.name = "debug alloc-fail-above", .type = OPT_SIZE},
    [ALLOC_FAIL_NTH] = {.name = "debug alloc-fail-nth", .type = OPT_INT, .min = 1, .max = 1e9},
};

/* "alloc-ceiling=64M" */
static int parse_fault(struct cli *c, const char *text, struct opt_value values[N_FAULTS])
{
    for (int i = 0; i < N_FAULTS; i++) {
        const char *name = faults[i].name + strlen("debug ");
        size_t n = strlen(name);
        if (strncmp(text, name, n) != 0 || text[n] != '=')
            continue;
        int rc = opt_parse_value(&faults[i], text + n + 1, &values[i], &c->err);
        c->usage = rc < 0;
        return rc;
    }
    return cli_usage(c, "--debug: \"%.100s\" is not alloc-ceiling=SIZE, alloc-fail-above=SIZE or alloc-fail-nth=N", text);
}

static int parse_faults(struct cli *c, struct opt_value values[N_FAULTS])
{
    for (int i = 0; i < c->o[O_DEBUG].n_list; i++)
        TRY(parse_fault(c, c->o[O_DEBUG].list[i], values));
    return 0;
}

int cli_check_faults(struct cli *c)
{
    struct opt_value values[N_FAULTS] = {0};
    return parse_faults(c, values);
}

void cli_set_faults(struct cli *c)
{
    struct opt_value values[N_FAULTS] = {0};
    if (parse_faults(c, values) < 0)
        return; /* refused long ago */
    if (values[ALLOC_CEILING].set)
        mem_set_ceiling(mem_total() + (size_t)values[ALLOC_CEILING].i);
    if (values[ALLOC_FAIL_ABOVE].set)
        mem_fail_above((size_t)values[ALLOC_FAIL_ABOVE].i);
    if (values[ALLOC_FAIL_NTH].set)
        mem_fail_nth((long)values[ALLOC_FAIL_NTH].i);
}
