"""UCI regression sets with the splits of the literature, standardised by their training part.

The sets are read from a folder given by the user. There ``<name>.npz`` holds

* ``x`` (N, D) and ``y`` (N,): the UCI set, raw;
* ``test_standard`` (20, N), bool: a row for each of the 20 random splits of Hernández-Lobato & Adams, "Probabilistic
  Backpropagation", ICML 2015, True where a point is held out (a tenth);
* ``test_gap`` (D, N), bool: the gap splits of Foong et al., "'In-Between' Uncertainty in Bayesian Neural Networks", 2019:
  one for each input feature, the middle third along it held out.

Other tables have, in place of these, ``test`` (10, ⌈N/8⌉), the packed bits (``numpy.packbits``) of ten random 90/10 splits: the
kind ``"random"``. Source: https://github.com/treforevans/uci_datasets.

Data and indices of both are in https://github.com/cambridge-mlg/DUN (MIT), as text: a row for each point and files of indices
for each split. Make the folder from that with ``numpy.savez_compressed(name, x=…, y=…, test_standard=…, test_gap=…)``.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.scores import Forecast

SETS = ("concrete", "energy", "kin8nm", "power", "wine", "yacht")
KINDS = ("standard", "gap")


@dataclass(frozen=True)
class Split:
    """Training and test points of one split, float64, on the CPU.

    Args:
        name: of the set.
        kind: ``"standard"``, ``"gap"`` or ``"random"``.
        index: of the split.
        x: ``(N, D)``, each feature with mean 0 and std 1 (0 where it is constant).
        y: ``(N,)``, mean 0 and std 1.
        x_test: ``(T, D)``, in the units of ``x``.
        y_test: ``(T,)``, in raw units; NaN in what a method is given, see :meth:`blind`.
        center: mean of the raw training targets.
        scale: std of the raw training targets.
    """

    name: str
    kind: str
    index: int
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    center: float
    scale: float

    @staticmethod
    def of(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, name: str = "", kind: str = "", index: int = 0) -> "Split":
        """Raw training and test points, standardised by the moments of the training points."""
        x, y, x_test, y_test = (value.double() for value in (x, y, x_test, y_test))
        centers, scales = x.mean(0), _spread(x)
        center, scale = y.mean(), _spread(y)
        inputs, queries = (x - centers) / scales, (x_test - centers) / scales
        return Split(name, kind, index, inputs, (y - center) / scale, queries, y_test, float(center), float(scale))

    @property
    def key(self) -> tuple[str, str, int, tuple[int, ...]]:
        """What tells this split and its parts from others in a cache."""
        return self.name, self.kind, self.index, tuple(self.x.shape)

    def blind(self) -> "Split":
        """The same without the test targets, so that nothing can be chosen by them."""
        return replace(self, y_test=torch.full_like(self.y_test, torch.nan))

    @property
    def repeated(self) -> Tensor:
        """``(T,)``: whether a test input is, number for number, one of the training inputs."""
        training = {tuple(row) for row in self.x.tolist()}
        return torch.tensor([tuple(row) in training for row in self.x_test.tolist()], dtype=torch.bool)

    def validation(self, seed: int, fraction: float = 0.2) -> "Split":
        """A split of the training points alone: a random fraction of them is to be predicted from the rest."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        held = max(1, round(fraction * len(self.x)))
        out, rest, y = order[:held], order[held:], self.y * self.scale + self.center
        return Split.of(self.x[rest], y[rest], self.x[out], y[out], self.name, self.kind, self.index)

    def gap(self, feature: int) -> "Split":
        """A split of the training points alone: the middle third along a feature is to be predicted from the rest."""
        order = self.x[:, feature].argsort(stable=True)
        third = len(order) // 3
        out, y = order[third : 2 * third], self.y * self.scale + self.center
        rest = torch.cat([order[:third], order[2 * third :]])
        return Split.of(self.x[rest], y[rest], self.x[out], y[out], self.name, self.kind, self.index)

    def with_known(self, seed: int) -> tuple["Split", int]:
        """The split with a tenth of its training points moved behind the test points, and the old number of test points."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        held, rest = order[: len(order) // 10], order[len(order) // 10 :]
        y = self.y * self.scale + self.center
        x_test, y_test = torch.cat([self.x_test, self.x[held]]), torch.cat([self.y_test, y[held]])
        return Split.of(self.x[rest], y[rest], x_test, y_test, self.name, self.kind, self.index), len(self.x_test)

    def forecast(self, mean: Tensor, std: Tensor, epistemic: Tensor | None = None, **chosen: Any) -> Forecast:
        """Mean and std in the units of ``y``, as a Gaussian forecast in raw units."""
        mean, std = mean.detach().cpu().double(), std.detach().cpu().double()
        part = None if epistemic is None else epistemic.detach().cpu().double() * self.scale
        return Forecast(mean * self.scale + self.center, std * self.scale, None, chosen, part)


def _spread(value: Tensor) -> Tensor:
    """The std along the points, 1 where they do not vary."""
    std = value.std(0, correction=0)
    return torch.where(std > 1e-12 * value.abs().amax(0).clamp(min=1e-300), std, 1.0)


def splits_of(folder: Path, name: str, kind: str) -> int:
    """How many splits of a kind a set has."""
    if _is_diabetes(folder, name):
        return 20
    with np.load(folder / f"{name}.npz") as stored:
        return len(stored["test" if kind == "random" else f"test_{kind}"])


def raw(folder: Path, name: str, kind: str, index: int) -> list[np.ndarray]:
    """Inputs, targets, test inputs and test targets of one split, as they are in the set."""
    if kind not in (*KINDS, "random"):
        raise ValueError(f"expected a kind of {(*KINDS, 'random')}, got {kind!r}")
    if _is_diabetes(folder, name):
        return _diabetes(index)
    with np.load(folder / f"{name}.npz") as stored:
        key = "test" if kind == "random" else f"test_{kind}"
        if key not in stored:
            there = [k for k in (*KINDS, "random") if ("test" if k == "random" else f"test_{k}") in stored]
            raise ValueError(f"{name} has splits of kind {' and '.join(there)}, not {kind!r}")
        x, y, test = stored["x"], stored["y"], stored[key][index]
        test = np.unpackbits(test)[: len(y)].astype(bool) if kind == "random" else test
    return [x[~test], y[~test], x[test], y[test]]


def load(folder: Path, name: str, kind: str, index: int) -> Split:
    """One split of one set, standardised."""
    x, y, x_test, y_test = (torch.from_numpy(part) for part in raw(folder, name, kind, index))
    return Split.of(x, y, x_test, y_test, name, kind, index)


def _is_diabetes(folder: Path, name: str) -> bool:
    return name == "diabetes" and not (folder / "diabetes.npz").exists()


def _diabetes(index: int) -> list[np.ndarray]:
    """Scikit-learn's small noisy set, a fifth held out at random."""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    parts = train_test_split(*load_diabetes(return_X_y=True), test_size=0.2, random_state=index)
    x, x_test, y, y_test = map(np.asarray, parts)
    return [x, y, x_test, y_test]
