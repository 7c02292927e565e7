#!/usr/bin/env python3
"""Makes data/<family>: tiny models with seeded weights, and what transformers computes with them.

    make_golden.py [--out DIR] [FAMILY ...]

For each family: builds the model, saves it with save_pretrained, loads it again in float32, float16
and bfloat16 (eager attention, on the CPU), runs one forward pass over token ids and writes beside
the checkpoint golden_<dtype>.safetensors, the activations named below, and golden.json, which says
how they were made and what each norm and MLP is.

Tensors, for layer i and a norm module at dotted path P (shapes [batch, tokens, ...]):

    input_ids
    layer.<i>.input, layer.<i>.output    the residual stream entering and leaving the layer
    layer.<i>.attn.output                the attention's output
    layer.<i>.ffn.input, .ffn.output     the residual stream before and after the feed-forward
    layer.<i>.mlp.input, .mlp.output     the MLP module itself
    norm.<P>.input, norm.<P>.output      every norm module, the attention's own included
    probe.*                              layer 0's norms and MLP on rows scaled by PROBE_SCALES

Every weight is exactly representable in bfloat16 and in float16: one checkpoint holds the same
values in whatever dtype it is read, and the files differ by the arithmetic alone. Needs torch,
transformers and safetensors; README.md names the versions that made the stored files.
"""

import argparse
import inspect
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEED, BATCH, TOKENS, VOCABULARY = 20240607, 2, 7, 128
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PROBE_SCALES = (0.0, 1e-4, 1e-2, 1.0, 4.0, 16.0)
LAYERS = "model.layers"
FFN_NORM = "post_attention_layernorm"


@dataclass(frozen=True)
class Family:
    """A model to make: its type, its config beside the common keys, the dtype of its checkpoint."""

    model_type: str
    config: dict
    saved: str


def sizes(hidden: int, ffn: int, **more) -> dict:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **more,
    }


FAMILIES = {
    "llama": Family("llama", sizes(64, 172), "bfloat16"),
    "llama_bias": Family("llama", sizes(72, 171, mlp_bias=True, attention_bias=True), "float32"),
    "mistral": Family("mistral", sizes(72, 180), "bfloat16"),
    "qwen2": Family("qwen2", sizes(80, 172), "bfloat16"),
    "qwen3": Family("qwen3", sizes(64, 173, head_dim=32), "bfloat16"),
}


def exact(x: torch.Tensor) -> torch.Tensor:
    """The nearest values that both bfloat16 and float16 hold."""
    x = x.to(torch.bfloat16).float()
    return torch.where(x.abs() < 2.0**-14, torch.zeros_like(x), x)


def is_norm(module: torch.nn.Module) -> bool:
    return "Norm" in type(module).__name__


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Draws every parameter, norms and biases too, so that none of them can be left out unseen."""

    def normal(like: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
        return exact(mean + deviation * torch.randn(like.shape, generator=generator))

    norms = {f"{name}.weight" for name, module in model.named_modules() if is_norm(module)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in norms:
                parameter.copy_(normal(parameter, 1.0, 0.3))
            elif parameter.dim() == 1:
                parameter.copy_(normal(parameter, 0.0, 0.2))
            elif "embed" in name:
                parameter.copy_(normal(parameter, 0.0, 1.0))
            else:
                parameter.copy_(normal(parameter, 0.0, 1.0 / math.sqrt(parameter.shape[-1])))


class Recorder:
    """Keeps the tensors that pass through a model's modules."""

    def __init__(self, model: torch.nn.Module):
        self.tensors: dict[str, torch.Tensor] = {}
        self.layers = list(model.get_submodule(LAYERS))
        self._handles = []
        for name, module in model.named_modules():
            if is_norm(module):
                self._watch(module, f"norm.{name}.input", f"norm.{name}.output")
        for i, layer in enumerate(self.layers):
            self._watch(layer, f"layer.{i}.input", f"layer.{i}.output")
            self._watch(layer.self_attn, None, f"layer.{i}.attn.output")
            self._watch(layer.mlp, f"layer.{i}.mlp.input", f"layer.{i}.mlp.output")
            self._watch(layer.get_submodule(FFN_NORM), f"layer.{i}.ffn.input", None)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep(self, key: str, value: torch.Tensor) -> None:
        self.tensors[key] = value.detach().clone()

    def _watch(self, module: torch.nn.Module, before: str | None, after: str | None) -> None:
        def on_input(_, args, kwargs):
            self._keep(before, args[0] if args else kwargs["hidden_states"])

        def on_output(_, args, output):
            self._keep(after, output[0] if isinstance(output, tuple | list) else output)

        if before:
            self._handles.append(module.register_forward_pre_hook(on_input, with_kwargs=True))
        if after:
            self._handles.append(module.register_forward_hook(on_output))


def probe(dtype: torch.dtype, width: int, scales: tuple[float, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED + width)
    x = torch.randn(len(scales), width, generator=generator) * torch.tensor(scales)[:, None]
    return exact(x).to(dtype)[None]


def run(model: torch.nn.Module, ids: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of one forward pass and of the probes."""
    recorder = Recorder(model)
    with torch.no_grad():
        model(input_ids=ids)
    recorder.close()
    tensors = recorder.tensors
    for i in range(len(recorder.layers)):
        tensors[f"layer.{i}.ffn.output"] = tensors[f"layer.{i}.output"].clone()
    layer = recorder.layers[0]
    with torch.no_grad():
        for name, module in layer.named_modules():
            if is_norm(module):
                key = f"norm.{LAYERS}.0.{name}"
                x = probe(dtype, tensors[f"{key}.input"].shape[-1], PROBE_SCALES)
                tensors[f"probe.{key}.input"], tensors[f"probe.{key}.output"] = x, module(x)
        x = probe(dtype, tensors["layer.0.mlp.input"].shape[-1], PROBE_SCALES[1:])
        tensors["probe.layer.0.mlp.input"], tensors["probe.layer.0.mlp.output"] = x, layer.mlp(x)
    tensors["input_ids"] = ids
    return {key: value.contiguous() for key, value in sorted(tensors.items())}


def versions() -> dict[str, str]:
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "attention": "eager",
    }


def describe(model: torch.nn.Module, name: str, saved: Path) -> dict:
    """What golden.json says."""
    with safe_open(saved, "pt") as file:
        stored = {
            key: (file.get_slice(key).get_dtype(), list(file.get_slice(key).get_shape()))
            for key in file.keys()  # noqa: SIM118 (not a dict)
        }
    norms = [
        {
            "module": path,
            "class": type(module).__name__,
            "kind": "rms",
            "eps": module.variance_epsilon,
            "weight_offset": 0.0,
            "rounds_before_weight": "self.weight * hidden_states.to("
            in inspect.getsource(type(module).forward),
            "weight": f"{path}.weight",
            "bias": None,
        }
        for path, module in model.named_modules()
        if is_norm(module)
    ]
    mlps = [
        {
            "layer": i,
            "module": [f"{LAYERS}.{i}.mlp"],
            "class": type(layer.mlp).__name__,
            "pre_norm": f"{LAYERS}.{i}.{FFN_NORM}",
            "post_norm": None,
            "norm_after_residual": None,
            "tensors": {k: v for k, v in stored.items() if k.startswith(f"{LAYERS}.{i}.mlp.")},
        }
        for i, layer in enumerate(model.get_submodule(LAYERS))
    ]
    return {
        "family": name,
        "model_type": model.config.model_type,
        "architecture": type(model).__name__,
        "activation": model.config.hidden_act,
        "residual": "sequential",
        "residual_multiplier": 1.0,
        "checkpoint_dtype": FAMILIES[name].saved,
        "norms": norms,
        "mlps": mlps,
        "probe_scales": PROBE_SCALES,
        "seed": str(SEED),
        **versions(),
    }


def build(name: str, out: Path) -> None:
    family, where = FAMILIES[name], out / name
    shutil.rmtree(where, ignore_errors=True)
    config = AutoConfig.for_model(
        family.model_type,
        vocab_size=VOCABULARY,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **family.config,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    randomise(model, torch.Generator().manual_seed(SEED))
    original = {key: value.clone() for key, value in model.state_dict().items()}
    model.to(DTYPES[family.saved]).save_pretrained(where)
    (where / "generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(
        3, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(SEED)
    )
    for dtype_name, dtype in DTYPES.items():
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=dtype, attn_implementation="eager"
        ).eval()
        for key, value in model.state_dict().items():
            assert torch.equal(value.float(), original[key].float()), (name, dtype_name, key)
        meta = {"family": name, "seed": str(SEED), **versions(), "dtype": dtype_name}
        save_file(
            run(model, ids, dtype),
            where / f"golden_{dtype_name}.safetensors",
            {"golden": json.dumps(meta)},
        )
    info = describe(model, name, where / "model.safetensors")
    (where / "golden.json").write_text(json.dumps(info, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for name in args.families or FAMILIES:
        build(name, args.out)
        print(name)


if __name__ == "__main__":
    main()
