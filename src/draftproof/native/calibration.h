// What a look-up's own score is worth, as calibration.py says: of one token, and what becomes of it.
#pragma once

#include <algorithm>
#include <cmath>

constexpr double kRecent = 1.0 / 12, kReach = 1.0 / 24;  // see sources.py
constexpr double kLeast = 1e-3, kWidest = 4.0;           // see calibration.py
constexpr double kDrifts[] = {2e-4, 1e-3, 1e-4, 1e-3};
constexpr int kDeepest = 64;

inline double share_of(double odds) { return odds > -30 ? 1 / (1 + std::exp(-odds)) : 0.0; }

inline double odds_of(double score) {
  if (score > kLeast && score < 1 - kLeast) return std::log(score / (1 - score));
  const double most = std::log((1 - kLeast) / kLeast);
  return score > kLeast ? most : -most;
}

// Of a depth, from 1 on.
inline double far_of(int depth) { return std::log2(double(std::min(depth, kDeepest))); }

// Calibration.learn: returns the chance that the token was given.
inline double learn_token(double *w, double *v, double score, int depth, double recent, bool right) {
  const double odds = odds_of(score), far = far_of(depth);
  const double expected = share_of(w[0] * odds + w[1] + w[2] * far + w[3] * recent);
  const double curvature = std::max(expected * (1 - expected), 0.02);
  const double ta = v[0] * odds + v[2], tb = v[2] * odds + v[1], tc = v[3] * far, td = v[4] * recent;
  const double scale = 1 / (1 / curvature + ta * odds + tb + tc * far + td * recent);
  const double step = ((right ? 1.0 : 0.0) - expected) * scale / curvature;
  w[0] = std::min(std::max(w[0] + ta * step, 0.0), 4.0);
  w[1] += tb * step, w[2] += tc * step, w[3] += td * step;
  v[0] = std::min(v[0] - ta * ta * scale + kDrifts[0], kWidest);
  v[1] = std::min(v[1] - tb * tb * scale + kDrifts[1], kWidest);
  v[2] -= ta * tb * scale;
  v[3] = std::min(v[3] - tc * tc * scale + kDrifts[2], kWidest);
  v[4] = std::min(v[4] - td * td * scale + kDrifts[3], kWidest);
  return expected;
}
