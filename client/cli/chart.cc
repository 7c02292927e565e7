#include "client/cli/chart.h"

#include <algorithm>
#include <cmath>

namespace fuseblock::cli {
namespace {

// Around the area that the lines are drawn in.
constexpr int kLeft = 80, kRight = 110, kTop = 34, kBottom = 40;

constexpr uint32_t kTextRgb = 0x333333, kGridRgb = 0xdddddd;
constexpr char kFont[] = "sans-serif";

void SetColour(cairo_t* cr, uint32_t rgb) {
  const auto part = [rgb](int shift) { return static_cast<double>(rgb >> shift & 0xff) / 255; };
  cairo_set_source_rgb(cr, part(16), part(8), part(0));
}

void Stroke(cairo_t* cr, uint32_t rgb, double width) {
  SetColour(cr, rgb);
  cairo_set_line_width(cr, width);
  cairo_stroke(cr);
}

}  // namespace

double ChartStep(double most) {
  const double rough = std::max(most, 1e-9) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

void DrawText(cairo_t* cr, double x, double y, Align align, const std::string& text) {
  cairo_select_font_face(cr, kFont, CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cr, 12);
  SetColour(cr, kTextRgb);
  cairo_text_extents_t extents;
  cairo_text_extents(cr, text.c_str(), &extents);
  const double before = align == Align::kLeft ? 0 : align == Align::kCentre ? 0.5 : 1;
  cairo_move_to(cr, x - before * extents.x_advance, y);
  cairo_show_text(cr, text.c_str());
}

void DrawTitle(cairo_t* cr, double x, double y, const std::string& text) {
  cairo_select_font_face(cr, kFont, CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_BOLD);
  cairo_set_font_size(cr, 14);
  SetColour(cr, kTextRgb);
  cairo_move_to(cr, x, y);
  cairo_show_text(cr, text.c_str());
}

void Chart::Draw(cairo_t* cr, double top) const {
  double most = 0;
  for (const Line& line : lines) {
    for (const auto& [x, y] : line.points) most = std::max(most, y);
  }
  const double step = ChartStep(most);
  const double y_max = step * std::max(1.0, std::ceil(most / step));
  const double bottom = top + kHeight - kBottom;
  const auto x_at = [&](double x) { return kLeft + x / x_max * (kWidth - kLeft - kRight); };
  const auto y_at = [&](double y) { return bottom - y / y_max * (kHeight - kTop - kBottom); };

  DrawTitle(cr, kLeft, top + kTop - 14, title);
  for (double y = 0; y <= y_max * 1.0001; y += step) {
    cairo_move_to(cr, kLeft, y_at(y));
    cairo_line_to(cr, kWidth - kRight, y_at(y));
    Stroke(cr, kGridRgb, 1);
    DrawText(cr, kLeft - 8, y_at(y) + 4, Align::kRight, y_text(y));
  }
  for (const auto& [x, label] : x_ticks) DrawText(cr, x_at(x), bottom + 16, Align::kCentre, label);
  DrawText(cr, (kLeft + kWidth - kRight) / 2.0, bottom + 32, Align::kCentre, x_label);

  double legend = top + kTop;
  for (const Line& line : lines) {
    cairo_new_path(cr);
    for (const auto& [x, y] : line.points) cairo_line_to(cr, x_at(x), y_at(y));
    Stroke(cr, line.rgb, 1.8);
    cairo_move_to(cr, kWidth - kRight + 12, legend - 4);
    cairo_rel_line_to(cr, 12, 0);
    Stroke(cr, line.rgb, 3);
    DrawText(cr, kWidth - kRight + 30, legend, Align::kLeft, line.name);
    legend += 18;
  }
}

}  // namespace fuseblock::cli
