/* Codebooks of the IQ block formats; see iq_grids.c for the packing. */
#ifndef GGUF_IQ_GRIDS_H
#define GGUF_IQ_GRIDS_H

#include <stdint.h>

extern const int8_t iq2_xxs_values[3], iq2_xs_values[3], iq2_s_values[3], iq3_xxs_values[8], iq3_s_values[8], iq1_s_values[3];
extern const uint16_t iq2_xxs_grid[256], iq2_xs_grid[512], iq2_s_grid[1024], iq3_xxs_grid[256], iq3_s_grid[512], iq1_s_grid[2048];

#endif
