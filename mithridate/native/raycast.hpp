// Frames of Miniworld's room: what its package draws with OpenGL, by rays.
#pragma once

#include <cstdint>

namespace mithridate {

// A camera 1.5 above the floor of a room of 6 × 6 × 2.74 with four boxes of side 0.8, 80 × 60
// pixels with four samples each, 60° high, made smaller by a matrix for rows and one for columns.
// As in the package, light comes from the direction (1, 3.5, 1), textures have 512 texels to the
// metre and are filtered trilinearly, and what is seen from inside a box is what is behind it.
struct Raycast {
  static constexpr int WIDTH = 80, HEIGHT = 60, SIDE = 25;

  const double* cameras;       // (N, 4): x, z, and the direction of looking, x and z
  const double* boxes;         // (N, 4, 2): blue, red, green, yellow
  const float* textures[3];    // of floor, wall and ceiling: all levels, largest first, RGB and 0
  long sizes[3];               // of their largest levels
  const float* rows;           // (25, 60)
  const float* columns;        // (25, 80)
  uint8_t* out;                // (N, 25, 25, 3)

  static long texels(long size);  // of all levels
  void frame(long n) const;
};

}  // namespace mithridate
