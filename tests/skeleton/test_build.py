from __future__ import annotations

import torch
from safetensors.torch import load_file

from bayplan.skeleton.build import build_model
from bayplan.skeleton.config import choose_class, choose_dtype, load_config
from bayplan.skeleton.tree import tie_groups, tree_digest

def test_x(checkpoint):
    config = load_config(checkpoint.folder)
    model = build_model(config, choose_class(config), choose_dtype(config), folder=checkpoint.folder)
    ref=checkpoint.reference
    print(checkpoint.name, [k for k,_ in ref.named_buffers()])
    assert type(model) is type(ref)
    assert tree_digest(model)==tree_digest(ref)
    assert tie_groups(model)==tie_groups(ref)
    for (k,a),(l,b) in zip(model.named_buffers(),ref.named_buffers(),strict=True):
        assert k==l
        assert a.dtype==b.dtype and a.shape==b.shape
        assert torch.equal(a.contiguous().reshape(-1).view(torch.uint8),b.contiguous().reshape(-1).view(torch.uint8)),k
    assert model.config._attn_implementation==ref.config._attn_implementation
    if hasattr(ref,'generation_config'): assert model.generation_config==ref.generation_config
    assert model.config.to_dict()==ref.config.to_dict()
