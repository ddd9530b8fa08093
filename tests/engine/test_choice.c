/* The pure choices: which slot serves, who gives memory back, how many prompt rows ride with running sequences. */
#include "engine/pace.h"
#include "engine/slot.h"
#include "support/test.h"

static void check(const struct slot_view *v, int n, int64_t n_prompt, int slot, int donor)
{
    struct slot_choice c = slot_choose(v, n, n_prompt);
    if (c.slot != slot || c.donor != donor)
        fail_msg("slot %d from %d; expected %d from %d", c.slot, c.donor, slot, donor);
}

/* B26: a few words never push a long conversation out while there is another place; B22: what several share is copied, not taken. */
static void test_slots(void **unused)
{
    (void)unused;
    struct slot_view busy[] = {{.is_busy = 1}, {.is_busy = 1}};
    check(busy, 2, 10, -1, -1);
    struct slot_view fresh[] = {{0}, {0}};
    check(fresh, 2, 10, 0, -1);
    struct slot_view next_turn[] = {{.held = 50}, {.held = 3000, .common = 3000, .reusable = 3000}, {0}};
    check(next_turn, 3, 3100, 1, -1);
    struct slot_view side[] = {{.held = 4000, .common = 20, .reusable = 0}, {0}}; /* a title request goes to the empty one */
    check(side, 2, 60, 1, -1);
    struct slot_view full[] = {{.held = 4000, .common = 3, .reusable = 0}, {.held = 80, .common = 3, .reusable = 0}}; /* or where little is lost */
    check(full, 2, 60, 1, -1);
    struct slot_view saving[] = {{.held = 100, .is_saving = 1}, {.held = 120}}; /* the disk is not waited for where little more is lost */
    check(saving, 2, 60, 1, -1);
    struct slot_view going_on[] = {{.held = 100, .common = 100, .reusable = 100, .is_saving = 1}, {0}}; /* nor when nothing of it changes */
    check(going_on, 2, 160, 0, -1);
    struct slot_view edited[] = {{.held = 3400, .common = 1800, .reusable = 1700}, {0}}; /* the unedited version is kept */
    check(edited, 2, 3400, 1, 0);
    struct slot_view regenerated[] = {{.held = 3440, .common = 3400, .reusable = 3400}, {0}}; /* an answer alone is not worth a copy */
    check(regenerated, 2, 3400, 0, -1);
    struct slot_view shared[] = {{.is_busy = 1, .held = 2000, .common = 900, .reusable = 900}, {.held = 10}}; /* the system prompt comes from one that is busy */
    check(shared, 2, 1000, 1, 0);
    struct slot_view tiny[] = {{.is_busy = 1, .held = 2000, .common = 12, .reusable = 12}, {0}};
    check(tiny, 2, 1000, 1, -1);
    struct slot_view stale[] = {{.held = 900, .idle_turns = 400}, {.held = 700, .idle_turns = 1}}; /* the longer one that nobody asked for in ages goes first */
    check(stale, 2, 50, 0, -1);
}

static void test_victim(void **unused)
{
    (void)unused;
    struct slot_view v[] = {{.held = 4000, .idle_turns = 2}, {.held = 100, .idle_turns = 1}, {.held = 10, .is_busy = 1}, {0}};
    assert_int_equal(slot_victim(v, 4, -1), 1); /* not by age alone */
    assert_int_equal(slot_victim(v, 4, 1), 0);
    v[0].held = v[1].held = 0;
    assert_int_equal(slot_victim(v, 4, -1), -1);
}

static void test_pace(void **unused)
{
    (void)unused;
    struct pace p = {0};
    assert_int_equal(pace_rows(&p, 0, 512), 2 * PACE_MIN_ALONE);
    assert_int_equal(pace_rows(&p, 1, 512), PACE_MIN_BESIDE);
    for (int i = 0; i < 50; i++) {
        pace_note(&p, 64, 0, 64.0); /* a millisecond a row */
        pace_note(&p, 0, 1, 40.0);
    }
    assert_int_equal(pace_rows(&p, 0, 512), 400);
    assert_int_equal(pace_rows(&p, 0, 100), 100);
    assert_in_range(pace_rows(&p, 1, 512), 30, 32);   /* adds at most PACE_SHARE of a step of theirs */
    for (int i = 0; i < 50; i++)
        pace_note(&p, 10, 1, 80.0);                    /* but a row costs 4 ms there */
    assert_in_range(pace_rows(&p, 1, 512), 7, 9);
    assert_int_equal(pace_rows(&p, 1, 2), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots), cmocka_unit_test(test_victim), cmocka_unit_test(test_pace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
