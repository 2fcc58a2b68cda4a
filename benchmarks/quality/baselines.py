"""The established methods by name: each maps a split, a seed and a device to a forecast."""

from collections.abc import Callable

from benchmarks.quality.dropout import mc_dropout, mc_dropout_published
from benchmarks.quality.ensemble import deep_ensemble, deep_ensemble_tuned
from benchmarks.quality.gp import gaussian_process
from benchmarks.quality.laplace_torch import laplace_full, laplace_kron, laplace_last_layer
from benchmarks.quality.scores import Forecast

METHODS: dict[str, Callable[..., Forecast]] = {
    "mc_dropout": mc_dropout,
    "mc_dropout_published": mc_dropout_published,
    "deep_ensemble": deep_ensemble,
    "deep_ensemble_tuned": deep_ensemble_tuned,
    "gaussian_process": gaussian_process,
    "laplace_full": laplace_full,
    "laplace_kron": laplace_kron,
    "laplace_last_layer": laplace_last_layer,
}
LABELS = {
    "mc_dropout": "MC dropout",
    "mc_dropout_published": "MC dropout, authors' τ",
    "deep_ensemble": "deep ensemble, 40 epochs",
    "deep_ensemble_tuned": "deep ensemble, tuned",
    "gaussian_process": "GP, ARD RBF",
    "laplace_full": "laplace-torch, full",
    "laplace_kron": "laplace-torch, kron",
    "laplace_last_layer": "laplace-torch, last layer",
}
