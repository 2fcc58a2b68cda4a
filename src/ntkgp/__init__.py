"""ntkgp: the Gaussian-process posterior of any PyTorch network, through its neural tangent kernel."""

from ntkgp._types import CheckpointWarning, GroupError, NumericalWarning
from ntkgp.checkpoint import Checkpoint
from ntkgp.covariance import PaperCovariance, TightCovariance
from ntkgp.diagnostics import KernelRegime, Report, kernel_regime, report
from ntkgp.distributed import Group
from ntkgp.evaluation import Evaluation, evaluate
from ntkgp.exact import Exact
from ntkgp.files import load
from ntkgp.fit import fit
from ntkgp.kernels import kernel, kernel_diag
from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.svd import DenseSVD, Lanczos, PartialSVD, PowerIteration, RandomizedSVD
from ntkgp.lowrank import LowRank
from ntkgp.networks import InputScales, NTKLinear, Sine, SumOfNetworks, TrigonometricInputs, last_layer, mlp
from ntkgp.own_training import TrainingPlan, anchor_penalty, plan_training
from ntkgp.paper import (
    partial_svd,
    query_posterior_covariance,
    query_posterior_mean,
    train_posterior_covariance,
    train_posterior_mean,
)
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.prior_mean import network_mean
from ntkgp.select import select
from ntkgp.table import tune_table
from ntkgp.trained import TrainedNetworks
from ntkgp.training import AcceleratedGD, Adam
from ntkgp.tune import tune
from ntkgp.tuned import Tuned
from ntkgp.warm_up import WarmUp, warm_up

__version__ = "0.1.0"

__all__ = [
    "CGLS",
    "AcceleratedGD",
    "Adam",
    "Checkpoint",
    "CheckpointWarning",
    "DenseSVD",
    "Evaluation",
    "Exact",
    "FunctionSample",
    "Group",
    "GroupError",
    "InputScales",
    "KernelRegime",
    "Lanczos",
    "LowRank",
    "NTKLinear",
    "NumericalWarning",
    "PaperCovariance",
    "PartialSVD",
    "Posterior",
    "PowerIteration",
    "Prediction",
    "RandomizedSVD",
    "Report",
    "Sine",
    "SumOfNetworks",
    "TightCovariance",
    "TrainedNetworks",
    "TrainingPlan",
    "TrigonometricInputs",
    "Tuned",
    "WarmUp",
    "anchor_penalty",
    "evaluate",
    "fit",
    "kernel",
    "kernel_diag",
    "kernel_regime",
    "last_layer",
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
