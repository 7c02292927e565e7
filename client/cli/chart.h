// A line chart: an axis each way, a grid, lines with a legend; drawn by cairo on any surface.
#pragma once

#include <cairo.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fuseblock::cli {

// The least of 1, 2, 5 times a power of ten that divides [0, most] into at most four parts.
double ChartStep(double most);

struct Chart {
  static constexpr int kWidth = 760, kHeight = 240;

  struct Line {
    std::string name;
    uint32_t rgb = 0;                               // 0x1f6feb
    std::vector<std::pair<double, double>> points;  // x in [0, x_max], y >= 0
  };

  std::string title, x_label;
  std::vector<Line> lines;
  std::vector<std::pair<double, std::string>> x_ticks;
  double x_max = 1;
  std::string (*y_text)(double) = nullptr;

  // Fills kWidth x kHeight from (0, top) on.
  void Draw(cairo_t* cr, double top) const;
};

enum class Align { kLeft, kCentre, kRight };

// One line of text whose baseline starts, is centred or ends at (x, y).
void DrawText(cairo_t* cr, double x, double y, Align align, const std::string& text);
// The same in the face of titles.
void DrawTitle(cairo_t* cr, double x, double y, const std::string& text);

}  // namespace fuseblock::cli
