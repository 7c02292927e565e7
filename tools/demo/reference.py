"""The whole model in FP64, for the synthetic checkpoint: which tokens a right client chooses."""

import numpy as np
from arithmetic import Arithmetic, exact
from attention import Rotary
from cases import Weights
from checkpoint import Checkpoint


def most_likely(checkpoint: Checkpoint, ids: list[int], count: int) -> tuple[float, list[int]]:
    """One pass over the ids: the most likely token after each of the last `count`.

    Also returns by how much the closest of these choices was made, in the logit.
    """
    config, weights = checkpoint.config, Weights(checkpoint)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["hidden_size"] // heads
    rotary = Rotary(head_dim, config["rope_theta"], len(ids))
    do = Arithmetic("FP32", 1, config["rms_norm_eps"])
    future = np.triu(np.ones((len(ids), len(ids)), bool), 1)

    def by_head(rows: np.ndarray, count: int) -> np.ndarray:
        return rows.reshape(len(rows), count, head_dim).swapaxes(0, 1)

    x = checkpoint.weight("model.embed_tokens")[ids].astype(np.float64)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        n = do.norm(exact(x), weights(f"{at}.input_layernorm")).value
        q, k, v = (n @ weights(f"{at}.self_attn.{p}_proj").T for p in "qkv")
        keys = np.repeat(rotary(by_head(k, kv_heads), 0), heads // kv_heads, axis=0)
        values = np.repeat(by_head(v, kv_heads), heads // kv_heads, axis=0)
        scores = rotary(by_head(q, heads), 0) @ keys.swapaxes(1, 2) / np.sqrt(head_dim)
        scores[:, future] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ values
        rows = mixed.swapaxes(0, 1).reshape(len(ids), -1)
        x = x + rows @ weights(f"{at}.self_attn.o_proj").T
        n = do.norm(exact(x), weights(f"{at}.post_attention_layernorm"))
        x = x + do.mlp(exact(n.value), *weights.mlp(layer)).value
    last = do.norm(exact(x[-count:]), weights("model.norm")).value
    logits = last @ weights("model.embed_tokens").T
    best = np.sort(np.partition(logits, -2, axis=-1)[:, -2:], axis=-1)
    return float((best[:, 1] - best[:, 0]).min()), logits.argmax(-1).tolist()
