// What the entry points refuse: whatever would make them read or write what nobody gave them.
#pragma once
#include "model.h"

constexpr float kMostWindow = 1 << 30;

// Whether a model can have this shape.
bool sound(const dp_shape &shape);
// Whether a pass names only rows, slots, nodes, tokens and layers that there are. Looks at each row
// and node once; marks a model whose vectors are all there.
bool sound(dp_model &model, const dp_pass &pass);
