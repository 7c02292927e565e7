#!/usr/bin/env python3
"""Runs every expression of the Grafana dashboard against a Prometheus and fails on an empty answer.

    dashboard.py http://127.0.0.1:9090 [--seconds 120] [--draw out.png]

--draw needs matplotlib and pictures the panels roughly as Grafana lays them out.
"""

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).resolve().parents[2] / "deploy/grafana/dashboards/fuseblock.json"
GRID = 24  # columns of Grafana's grid
# What a row's panels need: a GPU, or a block that is run in the shadow of another revision.
ROW_NEEDS = {"GPU": "fuseblock_gpu_utilization_ratio", "Shadow runs": "fuseblock_shadow_total"}


class Dashboard:
    def __init__(self, prometheus: str, seconds: int):
        self.prometheus = prometheus
        self.seconds = seconds
        self.step = max(1, seconds // 100)
        self.now = time.time()
        self.definition = json.loads(DASHBOARD.read_text())
        self.values = {"__rate_interval": "15s", "datasource": "prometheus"}
        for variable in self.definition["templating"]["list"]:
            if variable["type"] == "query":
                self.values[variable["name"]] = self.variable(variable["definition"])

    def api(self, path: str, **query: Any) -> Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query, doseq=True)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def variable(self, definition: str) -> str:
        """label_values(SERIES, LABEL) as Prometheus answers it, spelled as Grafana spells All."""
        series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", definition).groups()
        query = {"match[]": series, "start": self.now - self.seconds, "end": self.now}
        found = self.api(f"label/{label}/values", **query)
        return "|".join(map(re.escape, found)).replace("\\", "\\\\")

    def panels(self) -> list[dict[str, Any]]:
        """All that this server can fill."""
        found, filled = [], True
        for panel in self.definition["panels"]:
            if panel["type"] == "row":
                need = ROW_NEEDS.get(panel["title"])
                filled = need is None or bool(self.series(need))
            elif filled:
                found.append(panel)
        return found

    def series(self, expression: str) -> list[dict[str, Any]]:
        text = re.sub(r"\$(\w+)", lambda m: self.values[m[1]], expression)
        window = {"start": self.now - self.seconds, "end": self.now, "step": self.step}
        return self.api("query_range", query=text, **window)["result"]

    def empty_targets(self) -> Iterator[str]:
        for panel in self.panels():
            for target in panel["targets"]:
                series = self.series(target["expr"])
                if not any(not math.isnan(float(y)) for s in series for _, y in s["values"]):
                    yield f"{panel['title']}: {target['expr']}"

    def draw(self, out: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in self.panels())
        figure = plt.figure(figsize=(18, rows * 0.55))
        for panel in self.panels():
            g = panel["gridPos"]
            box = [
                g["x"] / GRID + 0.03,
                1 - (g["y"] + g["h"]) / rows + 0.02,
                g["w"] / GRID - 0.04,
                g["h"] / rows - 0.05,
            ]
            self.draw_panel(figure.add_axes(box), panel)
        figure.savefig(out, dpi=70)

    def draw_panel(self, axes: Any, panel: dict[str, Any]) -> None:
        axes.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})", fontsize=9)
        last = "no data"
        for target in panel["targets"]:
            for series in self.series(target["expr"]):
                label = re.sub(
                    r"\{\{(\w+)\}\}", lambda m, s=series: s["metric"].get(m[1], ""),
                    target["legendFormat"],
                )  # fmt: skip
                times, values = zip(*series["values"], strict=True)
                last = label if panel["options"].get("textMode") == "name" else values[-1][:8]
                if panel["type"] == "timeseries":
                    axes.plot([t - self.now for t in times], [*map(float, values)], label=label)
        if panel["type"] == "stat":
            axes.axis("off")
            axes.text(0.5, 0.4, last, ha="center", va="center", fontsize=20 if len(last) < 9 else 9)
        else:
            axes.grid(alpha=0.3)
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize=7, loc="upper left")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prometheus")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--draw", type=Path)
    arguments = parser.parse_args()
    dashboard = Dashboard(arguments.prometheus, arguments.seconds)
    empty = list(dashboard.empty_targets())
    for target in empty:
        print(f"empty: {target}")
    print(f"{len(dashboard.panels())} panels, {len(empty)} empty expressions")
    if arguments.draw:
        dashboard.draw(arguments.draw)
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
