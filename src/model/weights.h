/* Finding a model's tensors and checking their shapes. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "model/model.h"

/* Fills m->token_embd, output, output_norm, layers, weight_bytes (and owned). header_only: shapes are checked, data stays NULL. */
int model_weights_load(struct model *m, int header_only, struct err *err) MUST_CHECK;

#endif
