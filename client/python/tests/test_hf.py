"""Hugging Face models with remote feed-forwards; collected where torch and transformers are."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from conftest import ROOT
from fuseblock import BlockNotFound, Client
from fuseblock.hf import offload
from serving import serving
from transformers import AutoModelForCausalLM

IDS = torch.tensor([[3, 700, 12, 9, 1023]])


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("hf")
    checkpoint = folder / "checkpoint"
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    subprocess.run(
        [sys.executable, tool, checkpoint, "--layers", "2", "--vocabulary", "1024"], check=True
    )
    served = {"m": {"path": checkpoint, "dtype": "FP32", "rounding": "hf"}}
    with serving(served, folder / "log") as address:
        yield str(checkpoint), address


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("part", ["mlp", "ffn_path"])
def test_the_models_logits_stay_the_same(setting, part):
    checkpoint, address = setting
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    own = logits(model)
    calls = []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda *_: calls.append("own"))
    with Client(address) as client, offload(model, client, "m", part) as swapped:
        assert swapped.blocks == [f"m.layers.{i}.{part}" for i in range(2)]
        remote = logits(model)
    assert calls == []
    # Sums of at most 1536 FP32 terms in two orders, through two layers and the output product.
    torch.testing.assert_close(remote, own, rtol=0, atol=2e-3)
    assert torch.equal(logits(model), own)
    assert calls == ["own"] * 2


def test_blocks_that_do_not_fit_are_refused_and_nothing_is_swapped(setting):
    checkpoint, address = setting
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    own = model.model.layers[0].mlp
    with Client(address) as client:
        with pytest.raises(ValueError, match=r"float32.*bfloat16"):
            offload(model, client, "m")
        with pytest.raises(BlockNotFound):
            offload(model, client, "nobody")
    assert model.model.layers[0].mlp is own
