#include "raycast.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>


namespace mithridate {
namespace {

constexpr int W = Raycast::WIDTH, H = Raycast::HEIGHT, SIDE = Raycast::SIDE;
constexpr int SAMPLES = 4, BOXES = 4;
constexpr float ACROSS[SAMPLES] = {0.375f, 0.875f, 0.125f, 0.625f};  // where in a pixel they are
constexpr float DOWN[SAMPLES] = {0.125f, 0.375f, 0.625f, 0.875f};
constexpr float ROOM = 6, CEILING = 2.74f, EYE = 1.5f, HALF = 0.4f, TOP = 0.8f, NEAREST = 0.04f;
constexpr float DENSITY = 512;  // texels in a metre
constexpr float COLOURS[BOXES][3] = {{0, 0, 255}, {255, 0, 0}, {0, 255, 0}, {255, 255, 0}};

// Ambient light, and what comes from the side; what faces up is as bright as can be.
const float SHADE = 0.65f, LIT = 0.65f + 0.7f / std::sqrt(14.25f);

enum Surface { FLOOR, ABOVE, WEST, EAST, NORTH, SOUTH, BOX };  // BOX + 3 box + face
enum Face { DARK, BRIGHT, UP };

using Colour = float __attribute__((vector_size(16)));

Colour load(const float* texel) {
  Colour c;
  std::memcpy(&c, texel, sizeof c);
  return c;
}

int below(float x) {  // the whole number, quicker than std::floor
  const int i = int(x);
  return i - (x < float(i));
}

// Between four texels of a level; u and v are in textures, from 0 to 1.
Colour bilinear(const float* level, int size, float u, float v) {
  const float x = u * size - 0.5f, y = v * size - 0.5f;
  int x0 = below(x), y0 = below(y);
  const float a = x - x0, b = y - y0;
  const int x1 = x0 + 1 >= size ? 0 : x0 + 1, y1 = y0 + 1 >= size ? 0 : y0 + 1;
  x0 = x0 < 0 ? size - 1 : std::min(x0, size - 1), y0 = y0 < 0 ? size - 1 : std::min(y0, size - 1);
  const Colour p = load(level + 4 * (y0 * size + x0)), q = load(level + 4 * (y0 * size + x1));
  const Colour r = load(level + 4 * (y1 * size + x0)), s = load(level + 4 * (y1 * size + x1));
  const Colour lower = p + a * (q - p), upper = r + a * (s - r);
  return lower + b * (upper - lower);
}

Colour trilinear(const float* level, int size, float u, float v, float detail) {
  int step = 0;
  while (step + 1 <= detail && size > 1) level += 4 * size * size, size /= 2, ++step;
  u -= below(u), v -= below(v);
  const Colour fine = bilinear(level, size, u, v);
  const float share = detail - step;
  if (share <= 0 || size == 1) return fine;
  return fine + share * (bilinear(level + 4 * size * size, size / 2, u, v) - fine);
}

class Camera {
 public:
  Camera(const Raycast& world, long n)
      : world_(world), boxes_(world.boxes + 8 * n), x_(world.cameras[4 * n]),
        z_(world.cameras[4 * n + 1]), dx_(world.cameras[4 * n + 2]), dz_(world.cameras[4 * n + 3]) {
    for (int c = 0; c < W; ++c) {
      toward(c + 0.5f, hx_[c], hz_[c]);
      const float west = -x_ / hx_[c], east = (ROOM - x_) / hx_[c];
      const float north = -z_ / hz_[c], south = (ROOM - z_) / hz_[c];
      const float t[4] = {west, east, north, south};
      const float along[4] = {z_ + hz_[c] * west, ROOM - z_ - hz_[c] * east,
                              ROOM - x_ - hx_[c] * north, x_ + hx_[c] * south};
      for (int k = 0; k < 4; ++k) t_[k][c] = t[k], along_[k][c] = along[k];
    }
    for (int r = 0; r < H; ++r) rise_[r] = upward(r + 0.5f);
    for (int s = 0; s < SAMPLES; ++s)
      for (int r = 0; r < H; ++r) {
        const float dy = upward(r + DOWN[s]);
        level_[s][r] = (dy < 0 ? -EYE : CEILING - EYE) / dy, top_[s][r] = (TOP - EYE) / dy;
      }
  }

  // What every sample hits, (H, W, SAMPLES).
  void hit(uint8_t* surfaces) const {
    for (int s = 0; s < SAMPLES; ++s)
      for (int c = 0; c < W; ++c) {
        float hx, hz, enter[BOXES], leave[BOXES];
        toward(c + ACROSS[s], hx, hz);
        const float tx = ((hx > 0 ? ROOM : 0) - x_) / hx, tz = ((hz > 0 ? ROOM : 0) - z_) / hz;
        const float wall = std::min(tx, tz);
        const int which = tx < tz ? (hx > 0 ? EAST : WEST) : (hz > 0 ? SOUTH : NORTH);
        int face[BOXES], met = 0, boxes[BOXES];
        for (int b = 0; b < BOXES; ++b) {
          const float bx = boxes_[2 * b] - x_, bz = boxes_[2 * b + 1] - z_;
          const float x0 = (bx - HALF) / hx, x1 = (bx + HALF) / hx;
          const float z0 = (bz - HALF) / hz, z1 = (bz + HALF) / hz;
          const float ex = std::min(x0, x1), ez = std::min(z0, z1);
          enter[b] = std::max(ex, ez), leave[b] = std::min(std::max(x0, x1), std::max(z0, z1));
          face[b] = (ex > ez ? hx : hz) > 0 ? DARK : BRIGHT;
          if (enter[b] < leave[b]) boxes[met++] = b;
        }
        for (int r = 0; r < H; ++r) {
          const float level = level_[s][r], top = top_[s][r];
          float nearest = std::min(wall, level);
          int found = level < wall ? (r < H / 2 ? ABOVE : FLOOR) : which;
          for (int i = 0; i < met && r >= H / 2; ++i) {
            const int b = boxes[i];
            const float t = std::max(enter[b], top);
            if (t < std::min(leave[b], nearest) && t > NEAREST)
              nearest = t, found = BOX + 3 * b + (top > enter[b] ? int(UP) : face[b]);
          }
          surfaces[(r * W + c) * SAMPLES + s] = uint8_t(found);
        }
      }
  }

  // The colour of a surface in the middle of a pixel.
  Colour colour(int surface, int r, int c) const {
    if (surface >= BOX) {
      const float light[3] = {SHADE, LIT, 1};
      const float* rgb = COLOURS[(surface - BOX) / 3];
      return Colour{rgb[0], rgb[1], rgb[2], 0} * light[(surface - BOX) % 3];
    }
    const int c0 = c & ~1, c1 = c0 + 1, r0 = r & ~1, r1 = r0 + 1;
    if (surface == FLOOR || surface == ABOVE) {
      const float away = surface == FLOOR ? -EYE : CEILING - EYE;
      const float t = away / rise_[r], more = away / rise_[r1] - away / rise_[r0];
      return look(surface == FLOOR ? 0 : 2, x_ + hx_[c] * t, z_ + hz_[c] * t,
                  (hx_[c1] - hx_[c0]) * t, (hz_[c1] - hz_[c0]) * t, hx_[c] * more, hz_[c] * more) *
             (surface == FLOOR ? 1.0f : SHADE);
    }
    const float *t = t_[surface - WEST], *along = along_[surface - WEST];
    return look(1, along[c], EYE + rise_[r] * t[c], along[c1] - along[c0],
                rise_[r] * (t[c1] - t[c0]), 0, (rise_[r1] - rise_[r0]) * t[c]) *
           (surface == WEST || surface == NORTH ? LIT : SHADE);
  }

 private:
  static constexpr float TANGENT = 0.57735026919f;  // of 30°

  void toward(float column, float& hx, float& hz) const {
    const float side = (column / W * 2 - 1) * (TANGENT * W / H);
    hx = dx_ - dz_ * side, hz = dz_ + dx_ * side;
  }
  static float upward(float row) { return (1 - row / H * 2) * TANGENT; }

  // A texture at a place in metres, and how that changes from pixel to pixel.
  Colour look(int which, float u, float v, float ux, float vx, float uy, float vy) const {
    const float most = std::max(ux * ux + vx * vx, uy * uy + vy * vy) * DENSITY * DENSITY;
    const float detail = most > 1 ? 0.5f * std::log2(std::min(most, 1e12f)) : 0.0f;
    const float scale = DENSITY / world_.sizes[which];
    return trilinear(world_.textures[which], world_.sizes[which], u * scale, v * scale, detail);
  }

  const Raycast& world_;
  const double* boxes_;
  float x_, z_, dx_, dz_;
  float hx_[W], hz_[W], rise_[H];     // rays through the middle of pixels
  float t_[4][W], along_[4][W];       // where they meet each wall
  float level_[SAMPLES][H], top_[SAMPLES][H];  // where samples meet floor or ceiling, and boxes' tops
};

}  // namespace

long Raycast::texels(long size) {
  long total = 0;
  for (; size > 1; size /= 2) total += size * size;
  return total + 1;
}

void Raycast::frame(long n) const {
  static thread_local uint8_t surfaces[H * W * SAMPLES];
  static thread_local float pixels[H][W * 3], fewer[SIDE][W * 3];
  const Camera camera(*this, n);
  camera.hit(surfaces);
  for (int r = 0; r < H; ++r)
    for (int c = 0; c < W; ++c) {
      const uint8_t* hit = surfaces + (r * W + c) * SAMPLES;
      Colour mean = camera.colour(hit[0], r, c);
      if (hit[0] != hit[1] || hit[0] != hit[2] || hit[0] != hit[3]) {
        for (int s = 1; s < SAMPLES; ++s) mean += camera.colour(hit[s], r, c);
        mean /= SAMPLES;
      }
      for (int k = 0; k < 3; ++k) pixels[r][3 * c + k] = float(int(std::min(mean[k], 255.0f) + 0.5f));
    }
  for (int i = 0; i < SIDE; ++i) {
    std::fill_n(fewer[i], W * 3, 0.0f);
    for (int r = 0; r < H; ++r)
      if (const float weight = rows[i * H + r])
        for (int c = 0; c < W * 3; ++c) fewer[i][c] += weight * pixels[r][c];
    for (int j = 0; j < SIDE; ++j) {
      float sum[3] = {0, 0, 0};
      for (int c = 0; c < W; ++c)
        if (const float weight = columns[j * W + c])
          for (int k = 0; k < 3; ++k) sum[k] += weight * fewer[i][3 * c + k];
      uint8_t* pixel = out + ((n * SIDE + i) * SIDE + j) * 3;
      for (int k = 0; k < 3; ++k)
        pixel[k] = uint8_t(std::min(255.0f, std::max(0.0f, sum[k])) + 0.5f);
    }
  }
}

}  // namespace mithridate
