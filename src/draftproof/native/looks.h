// What glances and whole drafts of look-ups share.
#pragma once

#include "draftproof.h"

constexpr int32_t kTold = 8;  // tokens of a text that are learnt from one by one, at most

// Tokens of the text that the look-up holds; DP_BAD_ARGUMENT where `fresh` are too few for `size`.
int32_t held_by(const dp_look &look, int32_t size, int32_t fresh);

// The text goes on with `tokens` behind the first `held`. The length of the longest match of its end,
// and where it is found: in which automaton, and in which of its states.
int32_t find_longest(dp_look &look, int32_t held, const int32_t *tokens, int32_t count,
                     const dp_automaton **where, int32_t *state);
