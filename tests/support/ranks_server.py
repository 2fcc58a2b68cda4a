"""Imported by the process that ranks are forked from: what every rank would otherwise do for seconds is done once."""

import torch

import ntkgp

torch.set_num_threads(1)
if not torch.cuda.is_available():  # where there are GPUs, autograd has threads, and those do not survive a fork
    net = ntkgp.mlp(1, width=2, generator=torch.Generator().manual_seed(0)).double()
    x = torch.linspace(-1, 1, 4, dtype=torch.float64).unsqueeze(1)
    options = {"noise_var": 0.1, "generator": torch.Generator().manual_seed(0)}
    for method in (ntkgp.LowRank(rank=1, draws=1), ntkgp.TrainedNetworks(rank=1)):
        ntkgp.fit(net, x, x[:, 0], method=method, **options).predict(x)
