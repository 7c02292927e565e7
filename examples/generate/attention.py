"""Llama attention with a KV cache, in FP32 NumPy: the part of the model that this client keeps.

Shapes: T new tokens, S tokens in the cache with them, D the head's size; Q query heads share K key
and value heads in groups of Q/K.
"""

import numpy as np
from checkpoint import Checkpoint


class Rotary:
    """Rotary position embedding, pairs (i, i + D/2), angles in FP32 as transformers has them."""

    def __init__(self, head_dim: int, theta: float, positions_max: int):
        exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        inverse = np.float32(1) / np.power(np.float32(theta), exponent)
        angles = np.arange(positions_max, dtype=np.float32)[:, None] * inverse
        self._cos = np.concatenate([np.cos(angles)] * 2, axis=-1)
        self._sin = np.concatenate([np.sin(angles)] * 2, axis=-1)

    def __call__(self, x: np.ndarray, first: int) -> np.ndarray:
        """x [heads, T, D], the first token at position `first`."""
        rows = slice(first, first + x.shape[1])
        lower, upper = np.split(x, 2, axis=-1)
        return x * self._cos[rows] + np.concatenate([-upper, lower], axis=-1) * self._sin[rows]


class Attention:
    """One layer's attention: holds its projections and the keys and values of what came before."""

    def __init__(self, checkpoint: Checkpoint, layer: int, rotary: Rotary, positions_max: int):
        config = checkpoint.config
        self._heads = config["num_attention_heads"]
        self._kv_heads = config["num_key_value_heads"]
        self._head_dim = config["hidden_size"] // self._heads
        self._rotary = rotary
        module = f"model.layers.{layer}.self_attn"
        # One product for the three projections: their rows one after another.
        self._qkv = np.concatenate([checkpoint.weight(f"{module}.{p}_proj") for p in "qkv"])
        self._o = checkpoint.weight(f"{module}.o_proj")
        shape = (self._kv_heads, positions_max, self._head_dim)
        self._keys = np.empty(shape, np.float32)
        self._values = np.empty(shape, np.float32)
        self._length = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalised activations [T, hidden] -> the attention's output [T, hidden]."""
        tokens, first = len(x), self._length
        end = self._length = first + tokens
        kv_width = self._kv_heads * self._head_dim
        q, k, v = np.split(x @ self._qkv.T, [len(self._qkv) - 2 * kv_width, -kv_width], axis=-1)
        self._keys[:, first:end] = self._rotary(self._by_head(k), first)
        self._values[:, first:end] = self._by_head(v)
        q = self._rotary(self._by_head(q), first)
        groups = q.reshape(self._kv_heads, -1, tokens, self._head_dim)
        keys, values = self._keys[:, None, :end], self._values[:, None, :end]
        scores = groups @ keys.swapaxes(-1, -2) * np.float32(self._head_dim**-0.5)
        future = np.arange(end) > np.arange(first, end)[:, None]
        scores[..., future] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ values
        rows = mixed.reshape(self._heads, tokens, -1).swapaxes(0, 1).reshape(tokens, -1)
        return rows @ self._o.T

    def _by_head(self, rows: np.ndarray) -> np.ndarray:
        """[T, heads * D] -> [heads, T, D]."""
        return rows.reshape(len(rows), -1, self._head_dim).swapaxes(0, 1)
