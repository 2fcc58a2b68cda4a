"""Networks as plain data, there and back."""

import json

import pytest
import torch
from torch import nn

import ntkgp
from ntkgp.networks.description import describe, rebuild


def test_structure_as_plain_data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=g)
    net = ntkgp.tune_table(x, x[:, 0], width=4, local_width=8, warm_steps=[2], steps=2, starts=1, generator=g).module
    before = torch.get_rng_state()
    again = rebuild(json.loads(json.dumps(describe(net))))
    assert torch.equal(torch.get_rng_state(), before)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x), net(x))
    with pytest.raises(TypeError, match="a Conv1d cannot be written as plain data"):
        describe(nn.Sequential(nn.Conv1d(1, 1, 1)))
    with pytest.raises(ValueError, match="a layer 'Evil', which this version of ntkgp does not know"):
        rebuild({"kind": "Evil"})
    for damaged in ({}, {"kind": "Sequential"}, {"kind": "Linear", "in_features": "2", "out_features": 1, "bias": True}):
        with pytest.raises(ValueError, match="the description of the network is damaged"):
            rebuild(damaged)
