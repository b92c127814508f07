// Attention of a few packed rows over one head of keys and values. Does not know what a pass is.
#pragma once
#include <vector>

#include "model.h"

// A packed row: where it stands and what it may look at.
struct Place {
  const dp_segment *segment;
  int position;
  int slot;
  int committed;  // slots before it that all hold its past
  int path;       // then these nodes of the tree: `length` of them from paths[path]
  int length;
};

// What the rows of a pass share: their places, and the paths that these point into.
struct Pasts {
  dp_model &model;
  const std::vector<Place> &places;
  const std::vector<int> &paths;
};

// Of `count` rows from `first` on, all of one segment: model.room.rounded -> model.room.attended.
void attend(const Pasts &pasts, int thread, int number, const dp_segment &segment, int kv_head,
            int first, int count);
