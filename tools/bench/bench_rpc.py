#!/usr/bin/env python3
"""Requests through the real server on the CPU beside a bare gRPC echo, in turns by one client.

The block is the cheapest there is, a norm of 64 columns, so that what is measured is the way there
and back. Client and servers share the machine. Writes evidence/records/rpc_latency.json (one
request in flight) and rpc_throughput.json (64, over 8 connections), raw samples beside them.

gRPC's pollers go to sleep for 100 ms at a time once a second has passed without an event. So
rpc_latency also holds the slowest of requests that each come 1.06 s after the last.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rpc_peers import SEED, Case, Turns, echo, measure, result_of, samples_of, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tests/load")]

import record as records  # noqa: E402
import serving  # noqa: E402

COLUMNS, DTYPE = 64, "fp32"
TOKEN_BYTES = COLUMNS * 4
KIB = 1024
PAYLOADS = (KIB, 16 * KIB, 256 * KIB, 4096 * KIB)
CONNECTIONS = 8  # of 64 requests in flight
# p50 at one in flight, at most, times the echo's; requests/s at 64, at least, times the echo's.
LATENCY_BARS = {KIB: 1.5}
LATENCY_BAR, THROUGHPUT_BAR = 1.25, 0.85
# Requests so far apart find the pollers of a server asleep that does nothing about it: the slowest
# of 20 took 42 to 52 ms.
SILENCE_S, SILENCE_REQUESTS, SILENCE_MAX_US = 1.06, 20, 15_000
# What requests of 4 MiB take: 16384 tokens, of which 64 are in flight.
SETTINGS = {
    "devices": "cpu",
    "engine.max_batch_tokens": 16384,
    "admission.max_request_tokens": 16384,
    "admission.max_queue_tokens": 2 * 64 * 16384,
}


def cases() -> list[tuple[str, Case, str, float]]:
    """Record, case, what is measured, bar."""
    found = []
    for inflight, connections in ((1, 1), (64, CONNECTIONS)):
        for payload in PAYLOADS:
            tokens = payload // TOKEN_BYTES
            case = Case("bench.final_norm", COLUMNS, DTYPE, tokens, inflight, connections)
            if inflight == 1:
                bar = LATENCY_BARS.get(payload, LATENCY_BAR)
                found.append(("rpc_latency", case, "p50_us", bar))
            else:
                found.append(("rpc_throughput", case, "requests_per_s", THROUGHPUT_BAR))
    return found


def after_silence(client: Path, addresses: dict[str, str]) -> dict[str, Any]:
    """The slowest request of each contender, all asked at the same time, and whether that holds."""
    seconds = SILENCE_REQUESTS * SILENCE_S
    words = (
        "bench.final_norm",
        KIB // TOKEN_BYTES,
        COLUMNS,
        DTYPE,
        1 / SILENCE_S,
        seconds,
        5000,
        1,
    )
    running = {
        name: subprocess.Popen(
            [str(word) for word in (client, address, *words)], stdout=subprocess.PIPE, text=True
        )
        for name, address in addresses.items()
    }
    answers = {
        name: json.loads(process.communicate()[0])["answers_us"]["OK"]
        for name, process in running.items()
    }
    slowest = max(answers["server"])
    print(f"after {SILENCE_S} s of silence: slowest {slowest:,.1f} us, "
          f"echo {max(answers['echo']):,.1f}", flush=True)  # fmt: skip
    return {
        "silence_s": SILENCE_S,
        "answers_us": answers,
        "bar": {"max_us_at_most": SILENCE_MAX_US},
        "holds": slowest <= SILENCE_MAX_US,
    }


def show(result: dict[str, Any]) -> None:
    case, bar = result["case"], result["bar"]
    limit = f"<= {bar['at_most']}" if "at_most" in bar else f">= {bar['at_least']}"
    print(
        f"{case['payload_bytes'] // KIB:>5} KiB {case['inflight']:>3} in flight: "
        f"{result['value']:>10,.1f} {result['unit']:<10} echo {result['peers']['echo']:>10,.1f}, "
        f"{bar['reached']:.3f} of it ({limit}) {'' if result['holds'] else 'MISSED'}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, required=True, help="fuseblock-server")
    parser.add_argument("--clients", type=Path, required=True, help="folder of fuseblock_bench_*")
    parser.add_argument("--rounds", type=int, default=9, help="of one turn each")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--filter", default="", help="part of PAYLOAD-BYTES/IN-FLIGHT")
    parser.add_argument("--suffix", default="", help="of the records' names: another machine's")
    arguments = parser.parse_args()
    turns = Turns(arguments.rounds, arguments.seconds)
    config = {"rounds": turns.rounds, "seconds": turns.seconds, "client": "same host"} | SETTINGS
    made: dict[str, dict[str, Any]] = {}
    samples: dict[str, dict[str, Any]] = {}
    client = arguments.clients / "fuseblock_bench_rpc"
    settings = [word for name, to in SETTINGS.items() for word in ("--set", f"{name}={to}")]
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), COLUMNS, COLUMNS, DTYPE)
        model = ("--model", f"bench={folder}")
        with (
            serving.server(arguments.server, *model, *settings) as ours,
            echo(arguments.clients / "fuseblock_bench_echo") as echo_at,
        ):
            for kind, case, measured, bar in cases():
                if arguments.filter not in f"{case.payload_bytes()}/{case.inflight}":
                    continue
                report = measure(client, echo_at, ours.address, case, turns)
                result = result_of(case, report, measured, bar)
                name = kind + arguments.suffix
                record = made.setdefault(
                    name, records.new_record(name, "./dev bench rpc", config, seeds=[SEED])
                )
                record["results"].append(result)
                samples.setdefault(name, {})[records.case_name(result)] = samples_of(report)
                show(result)
            if (latency := made.get("rpc_latency" + arguments.suffix)) is not None:
                addresses = {"server": ours.address, "echo": echo_at}
                open_loop = arguments.clients / "fuseblock_bench_open_loop"
                silence = after_silence(open_loop, addresses)
                latency["after_silence"] = silence
    for name, record in made.items():
        kept = records.merge(record)
        record["holds"] = all(result["holds"] for result in record["results"])
        record["holds"] &= record.get("after_silence", {}).get("holds", True)
        record["ceilings"]["echo"] = [
            {"case": r["case"], "value": r["peers"]["echo"], "unit": r["unit"]}
            for r in record["results"]
        ]
        records.write_samples(name, samples[name], kept)
        path = records.write(record)
        print(f"{path.relative_to(ROOT)}: {'holds' if record['holds'] else 'REFUTED'}")
    return 0 if all(record["holds"] for record in made.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
