"""Hugging Face models with their feed-forwards on a Fuseblock server (needs torch).

model = AutoModelForCausalLM.from_pretrained(...)
with offload(model, client, "smollm2"):
    model.generate(...)
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import nn

from fuseblock.client import Client

_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|layer)\.(\d+)$")


class _Remote(nn.Module):
    """A module whose forward pass is a call. It has no parameters and gives no gradients."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self._call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x)


class Offload:
    """The swapped modules; `restore` puts the model's own back. A context manager that does so."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.blocks: list[str] = []

    def swap(self, owner: nn.Module, name: str, module: nn.Module) -> None:
        own = getattr(owner, name)
        setattr(owner, name, module)
        self._undo.append(lambda: setattr(owner, name, own))

    def on_restore(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def restore(self) -> None:
        """Puts the model's own modules back; a second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> "Offload":
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()


def offload(
    model: nn.Module,
    client: Client,
    model_name: str,
    part: Literal["mlp", "ffn_path"] = "mlp",
    timeout: float | None = None,
) -> Offload:
    """Swaps every decoder layer's MLP, or FFN path (norm, MLP, residual), for a remote one.

    Args:
        model: A model whose decoder layers have an attribute `mlp`; for "ffn_path" they must also
            be sequential with a `post_attention_layernorm` before the MLP (Llama, Mistral, Qwen).
        client: The connection; the caller keeps it open as long as the model is used.
        model_name: The model's name on the server.
        part: "mlp" or "ffn_path".
        timeout: Seconds for each call.

    Returns:
        What undoes it. The model's own weights stay where they are.

    Raises:
        ValueError: The model has no such layers, or the server's blocks do not fit it.
        FuseblockError: The server has no such block.
    """
    result = Offload()
    try:
        for number, layer in _layers(model, part):
            block = f"{model_name}.layers.{number}.{part}"
            _check(model, client, block)

            def call(x: torch.Tensor, block: str = block) -> torch.Tensor:
                return client.run(block, x, timeout=timeout)

            if part == "mlp":
                result.swap(layer, "mlp", _Remote(call))
            else:
                _swap_path(result, layer, call)
            result.blocks.append(block)
    except BaseException:
        result.restore()
        raise
    if not result.blocks:
        raise ValueError(f"{type(model).__name__}: no decoder layers with an attribute `mlp`")
    return result


def _layers(model: nn.Module, part: str) -> Iterator[tuple[int, nn.Module]]:
    for name, module in list(model.named_modules()):
        match = _LAYER.match(name)
        if not match or not hasattr(module, "mlp"):
            continue
        if part == "ffn_path":
            extra = [n for n in ("pre_feedforward_layernorm", "post_feedforward_layernorm")
                     if hasattr(module, n)]  # fmt: skip
            if extra or not hasattr(module, "post_attention_layernorm"):
                raise ValueError(
                    f"{name}: expected post_attention_layernorm as the MLP's only norm, "
                    f"got {extra or 'none'}"
                )
        yield int(match[1]), module


def _check(model: nn.Module, client: Client, block: str) -> None:
    """The block must be of the model's dtype and width."""
    info = client.describe(block)
    dtypes = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
    served = [dtypes[name] for name in info.inputs[0].dtypes if name in dtypes]
    config: Any = model.config
    if model.dtype not in served:
        raise ValueError(f"{block}: expected a model in one of {served}, got {model.dtype}")
    if info.hidden_size != config.hidden_size:
        raise ValueError(
            f"{block}: expected hidden size {info.hidden_size}, got {config.hidden_size}"
        )


def _swap_path(
    result: Offload, layer: nn.Module, call: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """The layer's own code goes on to compute h + mlp(norm(h)), with a norm that keeps h and an MLP
    that gives zeros; a hook then puts the remote path's output in the place of that sum."""
    kept: list[torch.Tensor] = []

    def keep(h: torch.Tensor) -> torch.Tensor:
        kept[:] = [h]
        return h

    def replace(_: nn.Module, __: Any, output: Any) -> Any:
        y = call(kept.pop())
        return (y, *output[1:]) if isinstance(output, tuple) else y

    result.swap(layer, "post_attention_layernorm", _Remote(keep))
    result.swap(layer, "mlp", _Remote(torch.zeros_like))
    result.on_restore(layer.register_forward_hook(replace).remove)
