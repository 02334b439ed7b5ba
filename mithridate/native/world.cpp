#include "world.hpp"

namespace mithridate {

float World::step(long b, int t, int64_t action, int64_t& state) const {
  const long now = b * steps + t, place = state * actions + action;
  const long entry = b * states * actions + place;
  float reward = rewards[entry];
  if (noise) reward = reward + noise[now];
  float wanted = reward;
  if (shifts) {
    int choice = 0;
    if (uniforms)
      for (int i = 0; i < choices - 1; ++i)
        choice += uniforms[now] >= edges[entry * (choices - 1) + i];
    wanted = reward + shifts[entry * choices + choice];
    if (normals) {
      const float noise_of_it = spreads[entry] * normals[now];
      wanted = wanted + noise_of_it;
    }
  }
  taken[now] = action;
  visited[now] = state;
  paid[now] = reward;
  proposed[now] = wanted;
  observed[now] = hit[now] ? wanted : reward;
  if (after) state = after[place];
  return observed[now];
}

}  // namespace mithridate
