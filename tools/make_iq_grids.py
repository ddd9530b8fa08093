"""Writes src/gguf/iq_grids.c: the codebooks of the IQ block formats, from the figures that the PyPI package `gguf` carries (gguf.quants, MIT).

    python3 tools/make_iq_grids.py > src/gguf/iq_grids.c        needs: pip install gguf==0.19.0
"""
import gguf.quants as q

TABLES = [("iq2_xxs", q.IQ2_XXS), ("iq2_xs", q.IQ2_XS), ("iq2_s", q.IQ2_S), ("iq3_xxs", q.IQ3_XXS), ("iq3_s", q.IQ3_S), ("iq1_s", q.IQ1_S)]

print("""/* Codebooks of the IQ block formats, written by tools/make_iq_grids.py from the figures in the PyPI package gguf 0.19.0 (MIT).
 * An entry packs the indices of its 8 (2 bits each) or 4 (3 bits each) values, first value lowest; the values an index stands for come first. */
#include "gguf/iq_grids.h"
""")
for name, cls in TABLES:
    cls.init_grid()
    grid = cls.grid.reshape(cls.grid_shape)
    values = [int(v) for v in cls.grid_map]
    bits = 2 if grid.shape[1] == 8 else 3
    print(f"const int8_t {name}_values[{len(values)}] = {{{', '.join(map(str, values))}}};")
    print(f"const uint16_t {name}_grid[{len(grid)}] = {{")
    words = [sum(values.index(int(v)) << bits * i for i, v in enumerate(row)) for row in grid]
    for i in range(0, len(words), 16):
        print("    " + ", ".join(f"{w:#06x}" for w in words[i:i + 16]) + ",")
    print("};\n")
