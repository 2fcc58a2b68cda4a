"""All methods of the comparison by name: how to run them, what tables call them, what their tuning costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.methods import ours
from benchmarks.methods.dropout import mc_dropout_budget
from benchmarks.methods.ensemble import deep_ensemble_budget
from benchmarks.methods.epinet import epinet
from benchmarks.methods.gaussian_process import gaussian_process
from benchmarks.methods.laplace_torch import laplace_full, laplace_kron, laplace_last_layer
from benchmarks.methods.mean_field import mean_field
from benchmarks.methods.ntk import ntk_ensemble, ntk_exact, ntk_trained
from benchmarks.methods.prior_networks import prior_networks
from benchmarks.methods.training.budget import FITS
from benchmarks.scores import Forecast


@dataclass(frozen=True)
class Method:
    """One row of the tables.

    Args:
        run: ``run(split, *, seed, device) -> Forecast``.
        label: in tables and pictures.
        family: the methods of a family share what they train, and run one after another in one process.
        tuning: how it is tuned, in words.
        fits: of tuning, on held-out training points.
        networks: that one fit trains.
        trained: whether it has the common budget.
        published: the rows of ``benchmarks/studies/quality/published.py`` that it should reach.
        ours: whether it is this library's.
        small: options of the small form.
    """

    run: Callable[..., Forecast]
    label: str
    family: str
    tuning: str
    fits: int
    networks: int
    trained: bool = True
    published: tuple[str, ...] = ()
    ours: bool = False
    small: Mapping[str, Any] = field(default_factory=dict)

    @property
    def small_form(self) -> dict[str, Any]:
        """Options that make a run quick."""
        return {**self.small, **({"steps": 1000} if self.trained else {})}


EVIDENCE = "noise, layers and inputs by marginal likelihood"
METHODS: dict[str, Method] = {
    "table": Method(ours.finite_table, "ntkgp: the recipe with width 512", "table",
                    f"length of the warm-up among 3; {EVIDENCE}", 3, 6,
                    False, ours=True, small={"width": 128, "local_width": 512, "warm_networks": 2, "steps": 40}),
    "at_initialisation": Method(ours.at_initialisation, "ntkgp: kernel at initialisation", "at_initialisation", EVIDENCE, 0, 0,
                                False, ours=True),
    "post_hoc": Method(ours.post_hoc, "ntkgp: post-hoc, exact", "post_hoc",
                       "none of the network; noise and layers by marginal likelihood", 0, 1, False, ours=True,
                       small={"steps": 500}),
    "ntk_trained": Method(ntk_trained, "ntkgp: trained networks (the paper)", "ntk", EVIDENCE, 0, 113, False, ours=True),
    "ntk_ensemble": Method(ntk_ensemble, "Bayesian deep ensemble (NTK)", "ntk", EVIDENCE, 0, 20, False),
    "ntk_exact": Method(ntk_exact, "analytic NTK-GP of that network", "ntk", EVIDENCE, 0, 0, False, ours=True),
    "deep_ensemble": Method(deep_ensemble_budget, "deep ensemble", "deep_ensemble", "penalty, epochs", FITS, 5,
                            published=("deep ensembles, Lakshminarayanan", "ensemble of 5, DUN", "ensemble of 5, DUN gap")),
    "mc_dropout": Method(mc_dropout_budget, "MC dropout", "mc_dropout", "rate, epochs, noise", FITS, 1,
                         published=("MC dropout, Gal", "dropout, DUN gap")),
    "laplace_full": Method(laplace_full, "Laplace, full", "laplace",
                           "penalty, epochs; prior precision and noise by marginal likelihood", FITS, 1),
    "laplace_kron": Method(laplace_kron, "Laplace, KFAC", "laplace", "as Laplace, full", FITS, 1),
    "laplace_last_layer": Method(laplace_last_layer, "Laplace, last layer", "laplace", "as Laplace, full", FITS, 1),
    "mean_field": Method(mean_field, "mean-field VI", "mean_field", "width of the prior, epochs", FITS, 1,
                         published=("mean-field VI, DUN gap",)),
    "epinet": Method(epinet, "epinet", "epinet", "scale of the prior function, epochs, noise", FITS, 1),
    "prior_networks": Method(prior_networks, "prior networks (RND)", "prior_networks",
                             "penalty, epochs, noise, scale of the variance", FITS, 11),
    "gaussian_process": Method(gaussian_process, "GP, ARD RBF", "gaussian_process",
                               "length scales, signal and noise by marginal likelihood", 0, 0, False,
                               published=("GP / SGPR, gprx",)),
}  # fmt: skip
