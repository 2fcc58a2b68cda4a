"""ntkgp: the Gaussian-process posterior of any PyTorch network, through its neural tangent kernel."""

from ntkgp import bandits, diagnostics, distributed, linalg, networks, plots, posterior, storage, tuning  # noqa: F401 (subpackages)
from ntkgp._system.errors import NumericalWarning
from ntkgp.apps.diagnostics.report import report
from ntkgp.apps.select import select
from ntkgp.linalg.cgls import CGLS
from ntkgp.networks.mlp import mlp
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.fit import fit
from ntkgp.posterior.load import load
from ntkgp.posterior.lowrank.method import LowRank
from ntkgp.posterior.paper import (
    partial_svd,
    query_posterior_covariance,
    query_posterior_mean,
    train_posterior_covariance,
    train_posterior_mean,
)
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.trained.method import TrainedNetworks
from ntkgp.posterior.trained.own_loop import anchor_penalty, plan_training
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.adam import Adam
from ntkgp.problem.prior_mean import network_mean
from ntkgp.tangent.kernels import kernel, kernel_diag
from ntkgp.tuning.recipe.table import tune_table
from ntkgp.tuning.tune import tune
from ntkgp.tuning.warm_up import warm_up

__version__ = "0.1.0"

__all__ = [
    "CGLS",
    "AcceleratedGD",
    "Adam",
    "Exact",
    "LowRank",
    "NumericalWarning",
    "Prediction",
    "TrainedNetworks",
    "anchor_penalty",
    "fit",
    "kernel",
    "kernel_diag",
    "load",
    "mlp",
    "network_mean",
    "partial_svd",
    "plan_training",
    "query_posterior_covariance",
    "query_posterior_mean",
    "report",
    "select",
    "train_posterior_covariance",
    "train_posterior_mean",
    "tune",
    "tune_table",
    "warm_up",
]
