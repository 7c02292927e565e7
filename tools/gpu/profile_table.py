#!/usr/bin/env python3
"""Prints what Nsight Compute saw of each kernel (ncu --page raw --csv) as one line a launch.

With --cases, what bench_rows.py --profile wrote: the launches after each mark (a kernel of
PyTorch's) are the calls of one case, and evidence/records/gpu_profile.json gets a result of each:
the bytes that passed between the chip and its memory in a call beside the fewest possible.
"""

import argparse
import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "evidence"))
import record as records  # noqa: E402

ID = "gpu_profile"
MARK = re.compile("at::native|vectorized_elementwise_kernel")
# A call may move so many times its fewest bytes.
BYTES_MAX = 1.05
MEGA = {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}
MICRO = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3}
KIBI = {f"{unit}/block": factor / 1024 for unit, factor in {"byte": 1, "Kbyte": 1e3}.items()}
# Column title, key in a result, metric, factor to its unit here.
COLUMNS = [
    ("us", "us", "gpu__time_duration.sum", MICRO),
    ("read MB", "read_mb", "dram__bytes_read.sum", MEGA),
    ("write MB", "write_mb", "dram__bytes_write.sum", MEGA),
    ("DRAM %", "dram_pct", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", {}),
    (
        "memory %",
        "memory_pct",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        {},
    ),
    ("SM %", "sm_pct", "sm__throughput.avg.pct_of_peak_sustained_elapsed", {}),
    ("warps %", "occupancy_pct", "sm__warps_active.avg.pct_of_peak_sustained_active", {}),
    ("possible", "occupancy_max_pct", "sm__maximum_warps_per_active_cycle_pct", {}),
    ("registers", "registers", "launch__registers_per_thread", {}),
    ("shared K", "shared_kib", "launch__shared_mem_per_block", KIBI),
    ("grid", "grid", "launch__grid_size", {}),
    ("block", "block", "launch__block_size", {}),
]
SUMMED = ("us", "read_mb", "write_mb")  # over the launches of a call; the rest: of its longest

Launch = dict[str, Any]


def read(path: str) -> list[Launch]:
    """Of each launch the kernel's name and whatever of the columns the profiler wrote."""
    with open(path, newline="") as file:
        lines = [line for line in file if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows:
        sys.exit("no kernel was profiled")
    units, launches = rows[0], rows[1:]  # the first row under the titles holds the units
    found = []
    for launch in launches:
        values: Launch = {"kernel": launch["Kernel Name"]}
        for _, key, metric, factors in COLUMNS:
            text = (launch.get(metric) or "").replace(",", "")
            try:
                values[key] = float(text) * factors.get(units.get(metric, ""), 1)
            except ValueError:
                continue
        found.append(values)
    return found


def show(launches: list[Launch]) -> None:
    print("".join(f"{title:>10}" for title, *_ in COLUMNS) + "  kernel")
    for launch in launches:
        cells = [
            f"{launch[key]:10.1f}" if key in launch else f"{'-':>10}" for _, key, *_ in COLUMNS
        ]
        print("".join(cells) + "  " + launch["kernel"][:70])


def grouped(launches: list[Launch]) -> list[list[Launch]]:
    """The launches after each mark; what came before the first mark is left out."""
    groups: list[list[Launch]] = []
    for launch in launches:
        if MARK.search(launch["kernel"]):
            groups.append([])
        elif groups:
            groups[-1].append(launch)
    return groups


def result_of(ran: dict[str, Any], launches: list[Launch]) -> dict[str, Any]:
    """One case: sums of a call, and the shape of its longest kernel."""
    calls = ran["calls"]
    sums = {key: sum(launch[key] for launch in launches) / calls for key in SUMMED}
    longest = max(launches, key=lambda launch: launch["us"])
    moved, least = sums["read_mb"] + sums["write_mb"], ran["bytes"] * 1e-6
    return {
        "case": ran["case"],
        "value": round(moved, 2),
        "unit": "MB",
        "floor": round(least, 2),
        "ratio": round(least / moved, 3),
        "launches": len(launches) / calls,
        **{key: round(value, 2) for key, value in (longest | sums).items() if key != "kernel"},
        "kernel": longest["kernel"],
    }


def write(cases: list[dict[str, Any]], launches: list[Launch], out: Path) -> int:
    groups = grouped(launches)
    if len(groups) != len(cases):
        sys.exit(f"{len(cases)} cases ran, but {len(groups)} were profiled")
    record = records.new_record(
        ID, "./dev gpu profile --filter memory", config={"bytes_max": BYTES_MAX, "calls": "cold L2"}
    )
    record["results"] = [result_of(*pair) for pair in zip(cases, groups, strict=True)]
    records.merge(record)
    record["results"].sort(key=records.case_name)
    record["holds"] = all(r["value"] <= BYTES_MAX * r["floor"] for r in record["results"])
    shutil.copy(records.write(record), out)
    for result in record["results"]:
        print(f"{result['case']['kernel']:16} {result['value']:8.1f} MB of {result['floor']:8.1f}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", nargs="?", help="ncu --page raw --csv")
    parser.add_argument("--metrics", action="store_true", help="print what --metrics of ncu needs")
    parser.add_argument("--cases", type=Path, help="profile_cases.json")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    arguments = parser.parse_args()
    if arguments.metrics:
        print(",".join(metric for _, _, metric, _ in COLUMNS))
        return 0
    if arguments.csv is None:
        parser.error("expected the profiler's CSV file")
    launches = read(arguments.csv)
    show(launches)
    if arguments.cases is None:
        return 0
    return write(json.loads(arguments.cases.read_text()), launches, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
