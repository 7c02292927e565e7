#!/usr/bin/env python3
"""Prints what Nsight Compute saw of each kernel (ncu --page raw --csv) as one line a launch."""

import csv
import sys

# Column title, metric, factor to its unit here.
COLUMNS = [
    ("us", "gpu__time_duration.sum", {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1}),
    ("read MB", "dram__bytes_read.sum", {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}),
    ("write MB", "dram__bytes_write.sum", {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}),
    ("memory %", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", {}),
    ("SM %", "sm__throughput.avg.pct_of_peak_sustained_elapsed", {}),
    ("warps %", "sm__warps_active.avg.pct_of_peak_sustained_active", {}),
    ("registers", "launch__registers_per_thread", {}),
    ("grid", "launch__grid_size", {}),
    ("block", "launch__block_size", {}),
]


def main() -> None:
    with open(sys.argv[1], newline="") as file:
        lines = [line for line in file if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows:
        sys.exit("no kernel was profiled")
    units, launches = rows[0], rows[1:]  # the first row under the titles holds the units
    print("".join(f"{title:>10}" for title, _, _ in COLUMNS) + "  kernel")
    for launch in launches:
        cells = []
        for _, metric, factors in COLUMNS:
            text = launch.get(metric, "").replace(",", "")
            try:
                cells.append(f"{float(text) * factors.get(units.get(metric, ''), 1):10.1f}")
            except ValueError:
                cells.append(f"{'-':>10}")
        print("".join(cells) + "  " + launch["Kernel Name"][:70])


if __name__ == "__main__":
    main()
