/* Operations where their arguments are extreme: what the models' own numbers never show. */
#include <math.h>
#include <string.h>

#include "compute/device.h"
#include "support/test.h"

static struct device *open_rung(const char *rung)
{
    struct device *dev = NULL;
    struct err err = {0};
    test_ok(device_open(&(struct device_options){.kind = DEVICE_CPU, .n_threads = 1, .cpu_rung = rung, .max_rows = 1, .max_n_in = 128}, &dev, &err), &err, rung);
    return dev;
}

/* x / sqrt(sum of squares + eps): a head of zeros stays one, a small one is not blown up to length 1. */
static void test_l2_norm(void **unused)
{
    (void)unused;
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
        struct device *dev = open_rung(*rung);
        float x[128] = {0};
        for (int i = 64; i < 128; i++)
            x[i] = 1e-4f;
        dev->op->l2_norm(dev, x, 1, 128, 2, 64, 1e-6f, 0.5f);
        for (int i = 0; i < 64; i++) {
            assert_true(x[i] == 0);
            assert_true(fabs((double)x[64 + i] - 0.5e-4 / sqrt(64e-8 + 1e-6)) < 1e-8);
        }
        device_close(dev);
    }
}

/* The decay's softplus and the step's sigmoid, far out on both sides. */
static void test_delta_gates(void **unused)
{
    static const float arguments[5] = {-200, -3, 0, 3, 200};
    (void)unused;
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
        struct device *dev = open_rung(*rung);
        float alpha[5], beta[5], a_neg[5] = {-1, -1, -1, -2, -2}, dt_bias[5] = {0};
        memcpy(alpha, arguments, sizeof alpha);
        memcpy(beta, arguments, sizeof beta);
        dev->op->delta_gates(dev, alpha, beta, a_neg, dt_bias, 1, 5);
        for (int i = 0; i < 5; i++) {
            double x = (double)arguments[i], softplus = x > 40 ? x : log1p(exp(x));
            assert_true(fabs((double)alpha[i] - (double)a_neg[i] * softplus) <= 1e-5);
            assert_true(fabs((double)beta[i] - 1 / (1 + exp(-x))) <= 1e-6);
        }
        device_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_l2_norm), cmocka_unit_test(test_delta_gates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
