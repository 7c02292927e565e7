"""The inputs that the demo sends, with the outputs that they should give.

From stored tensors of transformers' own run where the real checkpoint is served; drawn from a seed
and computed in FP64 where it is the synthetic one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from arithmetic import Arithmetic, Bounded, exact
from checkpoint import Checkpoint, SafetensorsFile

DTYPES = {"FP32": "float32", "BF16": "bfloat16"}
SYNTHETIC_TOKENS = 20


@dataclass(frozen=True)
class Case:
    """One call of a block.

    Attributes:
        block: Without the model: "layers.0.mlp".
        inputs: By name: FP64 values that are exact in the dtype, or ids.
        outputs: By name: what is expected, and how far a right answer may lie from it.
    """

    block: str
    inputs: dict[str, np.ndarray]
    outputs: dict[str, Bounded]


class Weights:
    """The checkpoint's weights in FP64; they are exact in BF16 and in FP32."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def __call__(self, module: str) -> np.ndarray:
        return self._checkpoint.weight(module).astype(np.float64)

    def mlp(self, layer: int) -> list[np.ndarray]:
        return [self(f"model.layers.{layer}.mlp.{p}_proj") for p in ("gate", "up", "down")]


@dataclass(frozen=True)
class LayerInputs:
    """What enters a layer's parts: its input, its attention's output, and its MLP's input."""

    layer: int
    x: np.ndarray
    attention: np.ndarray
    mlp_x: np.ndarray


def golden_cases(checkpoint: Checkpoint, golden: Path, dtype: str) -> Iterator[Case]:
    """Cases whose expected outputs are those that transformers gave."""
    stored = SafetensorsFile(golden / f"golden_{DTYPES[dtype]}.safetensors")

    def tensor(name: str) -> np.ndarray:
        return stored.float32(name).astype(np.float64)

    def expect(bounded: Bounded, name: str) -> Bounded:
        """The stored value, with the bound that the arithmetic gives."""
        return replace(bounded, value=tensor(name))

    layers = sorted({int(name.split(".")[1]) for name in stored if name.startswith("layer.")})
    ids = stored.stored("input_ids")
    first = tensor("layer.0.input")
    yield Case("embed", {"ids": ids}, {"y": exact(first)})
    for layer in layers:
        at = f"layer.{layer}"
        norms = f"norm.model.layers.{layer}"
        names = {
            "attn_norm": {"y": f"{norms}.input_layernorm.output"},
            "ffn_norm": {
                "y": f"{norms}.post_attention_layernorm.output",
                "residual_out": f"{at}.ffn.input",
            },
            "mlp": {"y": f"{at}.mlp.output"},
            "ffn_path": {"y": f"{at}.ffn.output"},
        }
        inputs = LayerInputs(
            layer, tensor(f"{at}.input"), tensor(f"{at}.attn.output"), tensor(f"{at}.mlp.input")
        )
        for case in _layer_cases(checkpoint, inputs, dtype, sides=2):
            part = names[case.block.rpartition(".")[2]]
            expected = {name: expect(case.outputs[name], key) for name, key in part.items()}
            yield Case(case.block, case.inputs, expected)
    last = _final_norm(checkpoint, tensor("norm.model.norm.input"), dtype, sides=2)
    yield Case(last.block, last.inputs, {"y": expect(last.outputs["y"], "norm.model.norm.output")})


def synthetic_cases(checkpoint: Checkpoint, dtype: str) -> Iterator[Case]:
    """Seeded cases whose expected outputs are computed in FP64."""
    config = checkpoint.config
    hidden, depth = config["hidden_size"], config["num_hidden_layers"]
    random = np.random.Generator(np.random.PCG64(1))

    def rows(scale: float) -> np.ndarray:
        x = random.standard_normal((1, SYNTHETIC_TOKENS, hidden), np.float32) * np.float32(scale)
        # The upper half of an FP32 is a BF16: exact in both dtypes.
        return (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)

    ids = random.integers(0, config["vocab_size"], (1, SYNTHETIC_TOKENS))
    table = checkpoint.weight("model.embed_tokens")[ids].astype(np.float64)
    yield Case("embed", {"ids": ids}, {"y": exact(table)})
    for layer in sorted({0, depth // 2, depth - 1}):
        inputs = LayerInputs(layer, rows(2), rows(1), rows(1))
        yield from _layer_cases(checkpoint, inputs, dtype, sides=1)
    yield _final_norm(checkpoint, rows(4), dtype, sides=1)


def _final_norm(checkpoint: Checkpoint, x: np.ndarray, dtype: str, sides: int) -> Case:
    do = Arithmetic(dtype, sides, checkpoint.config["rms_norm_eps"])
    y = do.norm(exact(x), Weights(checkpoint)("model.norm"))
    return Case("final_norm", {"x": x}, {"y": y})


def _layer_cases(
    checkpoint: Checkpoint, inputs: LayerInputs, dtype: str, sides: int
) -> Iterator[Case]:
    do = Arithmetic(dtype, sides, checkpoint.config["rms_norm_eps"])
    weights, at = Weights(checkpoint), f"layers.{inputs.layer}"
    norms = [weights(f"model.{at}.{name}_layernorm") for name in ("input", "post_attention")]
    mlp = weights.mlp(inputs.layer)
    summed = {"x": inputs.x, "residual": inputs.attention}
    h = do.add(inputs.x, inputs.attention)
    n = do.norm(h, norms[1])
    normed = do.norm(exact(inputs.x), norms[0])
    path = do.ffn_path(h, do.mlp(n, *mlp))
    yield Case(f"{at}.attn_norm", {"x": inputs.x}, {"y": normed})
    yield Case(f"{at}.ffn_norm", summed, {"y": n, "residual_out": h})
    yield Case(f"{at}.mlp", {"x": inputs.mlp_x}, {"y": do.mlp(exact(inputs.mlp_x), *mlp)})
    yield Case(f"{at}.ffn_path", summed, {"y": path})
