"""The methods of the study by name: how to run them, and what tables call them. This library's come first."""

from collections.abc import Callable
from functools import partial

from benchmarks.methods import laplace_torch, ours
from benchmarks.methods.dropout import mc_dropout, mc_dropout_published
from benchmarks.methods.ensemble import deep_ensemble, deep_ensemble_tuned
from benchmarks.methods.gaussian_process import gaussian_process
from benchmarks.methods.training.networks import searched_network
from benchmarks.scores import Forecast

OURS: dict[str, Callable[..., Forecast]] = {
    "infinite": ours.table,
    "table": ours.finite_table,
    "at_initialisation": ours.at_initialisation,
    "post_hoc": ours.post_hoc,
    "post_hoc_last_layer": ours.post_hoc_last_layer,
    "trained_networks": ours.trained_networks,
}
METHODS: dict[str, Callable[..., Forecast]] = {
    **OURS,
    "mc_dropout": mc_dropout,
    "mc_dropout_published": mc_dropout_published,
    "deep_ensemble": deep_ensemble,
    "deep_ensemble_tuned": deep_ensemble_tuned,
    "gaussian_process": gaussian_process,
    "laplace_full": partial(laplace_torch.laplace_full, network=searched_network),
    "laplace_kron": partial(laplace_torch.laplace_kron, network=searched_network),
    "laplace_last_layer": partial(laplace_torch.laplace_last_layer, network=searched_network),
}
LABELS = {
    "infinite": "ntkgp: the recipe for tables",
    "table": "ntkgp: the recipe with width 512",
    "at_initialisation": "ntkgp: kernel at initialisation, tuned",
    "post_hoc": "ntkgp: post-hoc on a trained network",
    "post_hoc_last_layer": "ntkgp: post-hoc, last layer only",
    "trained_networks": "ntkgp: trained networks (the paper)",
    "mc_dropout": "MC dropout",
    "mc_dropout_published": "MC dropout, authors' τ",
    "deep_ensemble": "deep ensemble, 40 epochs",
    "deep_ensemble_tuned": "deep ensemble, tuned",
    "gaussian_process": "GP, ARD RBF",
    "laplace_full": "laplace-torch, full",
    "laplace_kron": "laplace-torch, kron",
    "laplace_last_layer": "laplace-torch, last layer",
}
