"""How far predictions are off when the hyper-parameters, too, are found without the points that are predicted."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.progress import Bar
from ntkgp.posterior.exact.method import Exact
from ntkgp.tuning.result import Tuned
from ntkgp.tuning.search import Search, SearchOptions

FOLDS = 5
STEPS = 15  # evaluations of the likelihood per fold, from the hyper-parameters of all points
FEWEST, MOST = 10, 1000  # rows N·C; with more, hyper-parameters depend little on a fifth of them
COPY = 0.1  # points with a std below this part of the median are copies, or nearly: predicting them is no test


def cross_validated(
    network: nn.Module,
    x: Float[Tensor, "N D"],
    y: Float[Tensor, "N *C"],
    options: SearchOptions,
    tuned: Tuned,
    order: Tensor,
    bar: Bar,
) -> float:
    """Mean squared error of each fold's points, in predictive variances, with hyper-parameters tuned on the other folds.

    Leave-one-out errors with fixed hyper-parameters miss that these were fitted to the very points: with few points and many
    scales, intervals come out too narrow. `order` is a permutation of the points. Cost: FOLDS·STEPS evaluations of the
    likelihood of four fifths of the points.
    """
    errors, variances = list[Tensor](), list[Tensor]()
    for k in range(FOLDS):
        held, rest = order[k::FOLDS], torch.cat([order[j::FOLDS] for j in range(FOLDS) if j != k])
        found = Search(network, x[rest], y[rest], options, bar).near(tuned, STEPS)
        p = found.fit(x[rest], y[rest], method=Exact()).predict(x[held])
        errors.append((p.mean - y[held]).double().square().flatten())
        variances.append(p.total_std.double().square().flatten())
    square, variance = torch.cat(errors), torch.cat(variances)
    tested = variance >= COPY**2 * variance.median()
    return float((square / variance)[tested].mean())
