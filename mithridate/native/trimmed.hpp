// Rewards of many arms in ascending order, and sums of those in the middle.
#pragma once

#include <cstdint>

namespace mithridate {

// Of B tasks with A arms and room for T rewards each: put one reward of one arm of each task in its
// place among those before it (the largest is lost if there is no room), and add up what is left
// without the `drop` smallest and largest.
struct Trimmed {
  long arms, room;
  float* sorted;            // (B, A, T)
  const int64_t* actions;   // (B,)
  const float* rewards;     // (B,)
  const int64_t* counts;    // (B,): of that arm, this reward included
  const int64_t* drop;      // (B,)
  float* totals;            // (B,)

  void insert(long b) const;
};

}  // namespace mithridate
