// Constants of cos and sin of an FP64 angle, which the CPU and CUDA evaluate alike.
//
// k = angle * 2/pi rounded to a whole number, r = angle - k pi/2, |r| <= pi/4: pi/2 in three parts,
// the first two of 25 bits, so that k times each of them is exact for k < 2^28 and the first
// difference too; the parts leave 2^-104 of pi/2. sin r = r + r^3 S(r^2) and cos r = 1 + r^2 C(r^2)
// by Taylor's series: what S and C leave out is less than 7e-12 and 1.2e-10, beside FP32's rounding
// of 3e-8. Adding 1.5 * 2^52 rounds to a whole number whose low bits then hold k modulo 4.
#pragma once

namespace fuseblock {

constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPiHigh = 0x1.921fb5p+0;
constexpr double kHalfPiMiddle = 0x1.110b46p-26;
constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;
constexpr double kRoundToWhole = 0x1.8p+52;

// The coefficient of each power of r.
constexpr double kSin3 = -1.0 / 6, kSin5 = 1.0 / 120, kSin7 = -1.0 / 5040, kSin9 = 1.0 / 362880,
                 kSin11 = -1.0 / 39916800;
constexpr double kCos2 = -1.0 / 2, kCos4 = 1.0 / 24, kCos6 = -1.0 / 720, kCos8 = 1.0 / 40320,
                 kCos10 = -1.0 / 3628800;

}  // namespace fuseblock
