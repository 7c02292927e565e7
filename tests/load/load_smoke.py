#!/usr/bin/env python3
"""Load through the real server: ghz calls RunBlock, found by reflection, and every call must be OK.

Writes evidence/records/load_smoke.json and ghz's own reports beside it. Where a Prometheus is
installed it scrapes the server meanwhile, and the dashboard's expressions must all have answers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import serving
from dashboard import Dashboard
from fuseblock import RawTensor, protocol, tensors
from record import RECORDS, new_record, output_of, write

SEED = 1
CASES = [
    {"block": f"smollm2.layers.0.{part}", "tokens": tokens, "inflight": inflight, "dtype": "bf16"}
    for part, tokens, inflight in [
        ("mlp", 1, 1),
        ("mlp", 1, 16),
        ("mlp", 16, 16),
        ("mlp", 256, 4),
        ("ffn_path", 16, 16),
        ("ffn_norm", 16, 16),
    ]
]


def request_bytes(block: str, tokens: int, hidden: int) -> bytes:
    """A serialised RunBlockRequest of seeded activations in BF16."""
    x = np.random.default_rng(SEED).standard_normal((tokens, hidden), np.float32)
    bits = (x.view(np.uint32) >> 16).astype("<u2")  # the upper half: valid BF16 near enough to x
    wire = tensors.to_wire("x", RawTensor("BF16", (tokens, hidden), bits.tobytes()))
    return protocol.RUN_BLOCK.request(block=block, inputs=[wire]).SerializeToString()


def run_ghz(ghz: Path, address: str, case: dict[str, Any], seconds: int, hidden: int) -> dict:
    with tempfile.NamedTemporaryFile() as payload:
        payload.write(request_bytes(case["block"], case["tokens"], hidden))
        payload.flush()
        command = [ghz, "--insecure", "--call", "fuseblock.v1.BlockService/RunBlock"]
        command += ["-B", payload.name, "-c", str(case["inflight"]), "-z", f"{seconds}s"]
        # What is in flight at the end is waited for, not cancelled: cancelled calls are no finding.
        command += ["--duration-stop", "wait", "--disable-template-data", "-O", "json", address]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0 or not run.stdout:
        raise RuntimeError(f"ghz exited with {run.returncode}: {run.stderr or run.stdout}")
    report = json.loads(run.stdout)
    del report["details"]  # one entry for each call
    return report


def result_of(case: dict[str, Any], report: dict) -> dict[str, Any]:
    quantile = {q["percentage"]: q["latency"] / 1e6 for q in report["latencyDistribution"] or []}
    return {
        "case": case,
        "value": round(report["rps"], 1),
        "unit": "requests/s",
        "samples": report["count"],
        "p50": round(quantile.get(50, 0), 3),
        "p99": round(quantile.get(99, 0), 3),
        "statuses": report["statusCodeDistribution"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a build folder")
    parser.add_argument("--tools", type=Path, required=True, help="the folder with ghz")
    parser.add_argument("--model", type=Path, required=True, help="a BF16 checkpoint")
    parser.add_argument("--seconds", type=int, default=10, help="of load for each case")
    arguments = parser.parse_args()
    hidden = json.loads((arguments.model / "config.json").read_text())["hidden_size"]
    ghz = arguments.tools / "ghz"
    ghz_version = output_of("sed", "-nE", "s/.*ghz@v//p", "deploy/packages/go.txt")
    record = new_record(
        "load_smoke",
        f"./dev load {arguments.seconds}",
        config={"model": arguments.model.name, "seconds": arguments.seconds},
        seeds=[SEED],
        more_versions={"ghz": ghz_version},
    )
    reports = RECORDS / "load_smoke"
    reports.mkdir(parents=True, exist_ok=True)
    started = time.time()
    empty: list[str] = []
    model = ("--model", f"smollm2={arguments.model}", "--set", "models.smollm2.layers=0")
    with serving.server(arguments.build / "server/fuseblock-server", *model) as server:
        with serving.prometheus(server.metrics) as prometheus:
            for case in CASES:
                report = run_ghz(ghz, server.address, case, arguments.seconds, hidden)
                result = result_of(case, report)
                record["results"].append(result)
                name = "-".join(str(case[key]) for key in ("block", "tokens", "inflight"))
                (reports / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
                print(f"{case['block']:<24} {case['tokens']:>4} tokens, {case['inflight']:>3} in "
                      f"flight: {result['value']:>9,.1f} requests/s, p50 {result['p50']:.2f} ms, "
                      f"p99 {result['p99']:.2f} ms, {result['statuses']}", flush=True)  # fmt: skip
            if prometheus:
                time.sleep(2)  # the last scrapes: a second apart
                empty = list(Dashboard(prometheus, int(time.time() - started) + 5).empty_targets())
                for target in empty:
                    print(f"no data on the dashboard: {target}")
        check = subprocess.run(
            ["promtool", "check", "metrics"] if prometheus else ["true"],
            input="\n".join(server.metric_lines()) + "\n",
            text=True,
            check=False,
        )
    failed = [r for r in record["results"] if set(r["statuses"]) != {"OK"}]
    record["holds"] = not failed and not empty and check.returncode == 0
    path = write(record)
    print(f"{path.relative_to(serving.ROOT)}: {'holds' if record['holds'] else 'REFUTED'}")
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
