// What happens to one task of a rollout, laid out as tables. The arithmetic is that of the Python loop,
// operation by operation: nothing is contracted or reordered.
#pragma once

#include <cstdint>

namespace mithridate {

// Of B tasks and T steps; S states (one, if there are none) and A actions. What may be null is zero.
struct World {
  int steps, states, actions, choices;
  const float* rewards;    // (B, S, A): what an action pays, without noise
  const int64_t* after;    // (S, A): where it leads; may be null
  const float* noise;      // (B, T): what is added; may be null
  const bool* hit;         // (B, T): whether the attacker's reward is seen
  const float* shifts;     // (B, S, A, choices): what the attacker adds; null if there is none
  const float* edges;      // (B, S, A, choices - 1): its choice is how many are not above …
  const float* uniforms;   // … (B, T); null if it has no choice
  const float* spreads;    // (B, S, A): standard deviations of its noise …
  const float* normals;    // … (B, T); may be null
  // What is recorded, (B, T) each.
  int64_t *taken, *visited;
  float *paid, *proposed, *observed;

  // Task b takes an action in its state at step t: the reward that is seen. The state becomes the next.
  float step(long b, int t, int64_t action, int64_t& state) const;
};

}  // namespace mithridate
