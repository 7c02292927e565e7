"""The arithmetic of the benchmarks: bars, merged records, the profiler's table."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / folder) for folder in ("evidence", "tools/bench", "tools/gpu")]
import bars  # noqa: E402
import profile_table  # noqa: E402
import record as records  # noqa: E402


def result(kernel="silu", shape="16384x8192", value=100.0, floor=96.0, **peers):
    peers = peers or {"torch_eager": 300.0, "torch_compile": 98.0}
    case = {"kernel": kernel, "rows": 1, "cols": 1, "dtype": "bf16", "shape": shape}
    return {"case": case, "value": value, "floor": floor, "peers": peers}


@pytest.mark.parametrize(
    ("case", "bar", "holds"),
    [
        (result(), 0.95, True),
        (result(floor=94.9), 0.95, False),
        (result("rope", "8192x32x128", floor=90.0), 0.90, True),
        (result("causal_softmax", "16x2048x2048", floor=84.0), 0.85, False),
        # A small shape is held to torch.compile, however fast eager is.
        (result(shape="256x4096", torch_eager=50.0, torch_compile=101.0), 1.0, True),
        (result(shape="256x4096", torch_eager=500.0, torch_compile=99.0), 1.0, False),
    ],
)
def test_a_case_is_held_to_the_first_bar_that_applies(case, bar, holds):
    bars.judge(case, bars.GPU)
    assert case["bar"]["at_least"] == bar
    assert case["holds"] is holds


def feed_forward(tokens, dtype="bf16", hidden=4096, value=100.0, form=None, **more):
    case = {"hidden": hidden, "intermediate": 1, "tokens": tokens, "dtype": dtype}
    case |= {"form": form} if form else {}
    peers = {"torch_eager": 120.0} | ({"torch_compile": 110.0} if dtype == "bf16" else {})
    return {"case": case, "value": value, "floor": 95.0, "peers": peers} | more


@pytest.mark.parametrize(
    ("case", "reached", "holds"),
    [
        (feed_forward(1), 0.95, False),
        (feed_forward(16), 0.95, True),
        (feed_forward(256), 1.1, True),
        (feed_forward(256, value=105.0), 1.048, False),
        (feed_forward(256, hidden=2048), 1.1, False),
        (feed_forward(1, "f16", our_bf16=99.0), 0.99, True),
        (feed_forward(1, "f16", our_bf16=97.0), 0.97, False),
        (feed_forward(1, "f16"), 0.0, False),  # BF16 was not measured
        (feed_forward(1, form="geglu_tanh"), 0.95, True),
        (feed_forward(256, form="gelu_tanh", value=105.0), 1.048, True),
    ],
)
def test_few_tokens_are_held_to_the_floor_many_to_the_compiler_and_fp16_to_bf16(
    case, reached, holds
):
    bars.judge(case, bars.FEED_FORWARD_GPU)
    assert case["bar"]["reached"] == reached
    assert case["holds"] is holds


def test_the_ratio_is_to_the_best_peer():
    case = result("swiglu", "512x4096", torch_eager=140.0, torch_compile=400.0)
    bars.judge(case, bars.CPU)
    assert case["ratio"] == 1.4
    assert not case["holds"]
    embedding = result("embedding", "512x4096", torch_eager=140.0, torch_compile=400.0)
    bars.judge(embedding, bars.CPU)
    assert embedding["holds"]


# What a path on the CPU is held to by tokens: of a small size, of a large one.
SMALL = {
    **{tokens: [("ratio", 0.97), ("ratio to torch_eager", 1.1)] for tokens in (1, 4, 16, 64)},
    256: [("ratio", 0.97), ("share_of_peak", 0.93)],
}
LARGE = SMALL | {
    1: [("ratio", 0.97), ("share_of_read", 0.93), ("ratio to torch_eager", 1.1)],
    4: [("ratio", 0.97), ("share_of_read", 0.87), ("ratio to torch_eager", 1.1)],
}
LARGEST_BF16 = LARGE | {
    1: [("ratio", 0.97), ("share_of_read", 0.93), ("ratio", 1.1), ("ratio to torch_eager", 1.1)],
}
BY_SIZE = {
    (576, "fp32"): SMALL,
    (576, "bf16"): SMALL,
    (2048, "fp32"): LARGE,
    (2048, "bf16"): LARGE,
    (4096, "fp32"): LARGE,
    (4096, "bf16"): LARGEST_BF16,
}


def path_on_cpu(tokens, hidden=4096, dtype="bf16", threads=1, **more):
    case = {"hidden": hidden, "intermediate": 1, "dtype": dtype, "threads": threads}
    result = {"case": case | {"tokens": tokens}, "value": 100.0, "read_us": 95.0}
    return result | {"multiply_us": 10.0, "peers": {"torch_eager": 130.0, "ggml": 120.0}} | more


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 256])
@pytest.mark.parametrize(("hidden", "dtype"), BY_SIZE)
def test_a_path_on_the_cpu_is_held_to_every_bar_of_its_case(hidden, dtype, tokens, threads):
    case = path_on_cpu(tokens, hidden, dtype, threads)
    bars.judge_by_all(case, bars.FEED_FORWARD_CPU)
    found = [(bar["measure"], bar["at_least"]) for bar in case["bars"]]
    assert found == BY_SIZE[hidden, dtype][tokens]


@pytest.mark.parametrize(
    ("case", "reached", "missed"),
    [
        (path_on_cpu(1), [1.2, 0.95, 1.2, 1.3], []),
        (path_on_cpu(1, read_us=92.94), [1.2, 0.929, 1.2, 1.3], ["share_of_read 0.929 < 0.93"]),
        (path_on_cpu(1, read_us=92.96), [1.2, 0.93, 1.2, 1.3], []),  # as it is written down
        (path_on_cpu(256, multiply_us=93.0), [1.2, 0.93], []),
        (
            path_on_cpu(16, peers={"torch_eager": 109.0, "ggml": 96.0}),
            [0.96, 1.09],
            ["ratio 0.96 < 0.97", "ratio to torch_eager 1.09 < 1.1"],
        ),
    ],
)
def test_a_path_on_the_cpu_names_each_bar_that_it_misses(case, reached, missed):
    bars.judge_by_all(case, bars.FEED_FORWARD_CPU)
    assert [bar["reached"] for bar in case["bars"]] == reached
    assert case["missed"] == missed
    assert case["holds"] is (missed == [])
    assert case["ratio"] == reached[0]


def test_a_record_without_a_wanted_case_does_not_hold():
    record = {"results": [result()]}
    bars.judge(record["results"][0], bars.GPU)
    assert bars.holds(record, ["a"], ["a"])
    assert not bars.holds(record, ["a", "b"], ["a"])
    assert record["missing"] == ["b"]


def new_record(results, commit="c", gpu="g"):
    hardware = {"cpu": "x", "gpu": gpu}
    return {"id": "r", "commit": commit, "hardware": hardware, "results": results}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    return tmp_path


def test_cases_of_an_earlier_run_stay_until_they_are_measured_again(folder):
    records.write(new_record([result("silu", value=1.0), result("gelu_erf", value=2.0)]))
    record = new_record([result("silu", value=3.0)])
    kept = records.merge(record)
    assert [r["value"] for r in record["results"]] == [3.0, 2.0]
    assert kept == {"gelu_erf 1 1 bf16 16384x8192"}


@pytest.mark.parametrize("other", [{"commit": "d"}, {"gpu": "h"}])
def test_cases_of_another_commit_or_machine_go(folder, other):
    records.write(new_record([result("gelu_erf")]))
    record = new_record([result("silu")], **other)
    assert records.merge(record) == set()
    assert len(record["results"]) == 1


def test_samples_are_kept_with_their_cases(folder):
    records.write_samples("r", {"a": {"ours": [1.0]}, "b": {"ours": [2.0]}}, set())
    path = records.write_samples("r", {"b": {"ours": [3.00049]}}, {"a"})
    assert json.loads(path.read_text()) == {"a": {"ours": [1.0]}, "b": {"ours": [3.0]}}
    records.write_samples("r", {"c": {"ours": [4.0]}}, set())
    assert list(json.loads(path.read_text())) == ["c"]


HEADER = (
    '"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum",'
    '"launch__registers_per_thread","launch__shared_mem_per_block"'
)
CSV = f"""==PROF== Disconnected
{HEADER}
"","","us","Mbyte","Kbyte","register/thread","byte/block"
"0","at::native::vectorized_elementwise_kernel","1.0","9","9","16","0"
"1","fuseblock::Rows<float>","100.5","1,000.5","999","40","2,048"
"2","fuseblock::Finish<float>","10","0.5","1","20","0"
"3","at::native::vectorized_elementwise_kernel","1.0","9","9","16","0"
"4","fuseblock::Other<float>","7","3","0","32","0"
"""


def test_launches_after_a_mark_are_one_case(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(CSV)
    groups = profile_table.grouped(profile_table.read(path))
    assert [len(group) for group in groups] == [2, 1]
    ran = {"case": {"kernel": "rows"}, "calls": 1, "bytes": 990_000_000}
    found = profile_table.result_of(ran, groups[0])
    assert found["value"] == pytest.approx(1002.0)
    assert found["us"] == 110.5
    assert (found["registers"], found["shared_kib"]) == (40, 2)
    assert found["kernel"] == "fuseblock::Rows<float>"
    assert found["ratio"] == pytest.approx(0.988)
