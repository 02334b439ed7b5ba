#include "trimmed.hpp"

#include <algorithm>
#include <cstring>

namespace mithridate {

void Trimmed::insert(long b) const {
  float* row = sorted + (b * arms + actions[b]) * room;
  const long before = std::min<long>(counts[b] - 1, room);
  const long place = std::lower_bound(row, row + before, rewards[b]) - row;
  if (place < room) {
    const long moved = std::min(before, room - 1) - place;
    std::memmove(row + place + 1, row + place, moved * sizeof(float));
    row[place] = rewards[b];
  }
  const long end = std::min<long>(counts[b] - drop[b], room);
  float total = 0;
  for (long i = drop[b]; i < end; ++i) total += row[i];
  totals[b] = total;
}

}  // namespace mithridate
