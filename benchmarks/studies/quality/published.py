"""Test NLL that others have published on the same splits, in raw units with ½ log 2π; for the tables beside our own runs."""

from dataclasses import dataclass, field

from benchmarks.uci import SETS


@dataclass(frozen=True)
class Source:
    """One published row."""

    label: str
    reference: str
    figures: dict[str, float] = field(hash=False)


def _source(label: str, reference: str, *figures: float | None) -> Source:
    return Source(label, reference, {name: value for name, value in zip(SETS, figures, strict=True) if value is not None})


DUN = "results of the repository cambridge-mlg/DUN (Antorán et al., Depth Uncertainty in Neural Networks, 2020)"
PUBLISHED: dict[str, list[Source]] = {
    "standard": [
        _source("MC dropout, Gal", "per-split results of the repository yaringal/DropoutUncertaintyExps, 4000 epochs",
                2.94, 1.21, -1.14, 2.81, 0.93, 1.25),
        _source("deep ensembles, Lakshminarayanan", "Lakshminarayanan, Pritzel & Blundell, 2017",
                3.06, 1.38, -1.20, 2.79, 0.94, 1.18),
        _source("ensemble of 5, DUN", f"tuned for each split, {DUN}", 2.89, 1.30, -0.81, 2.66, 1.12, 2.44),
        _source("GP / SGPR, gprx", "ARD RBF kernel, README of the repository gprx", None, 0.69, None, 2.75, 0.95, 0.20),
        _source("NGBoost", "Duan et al., NGBoost: Natural Gradient Boosting, 2020", 3.04, 0.60, -0.49, 2.79, 0.91, 0.20),
        _source("deep evidential regression", "Amini et al., Deep Evidential Regression, 2020",
                3.01, 1.39, -1.24, 2.81, 0.89, 1.03),
        _source("PBP-MV", "Sun, Chen & Carin, Learning Structured Weight Uncertainty in Bayesian Neural Networks, 2017",
                3.04, 1.01, -1.28, 2.78, 0.97, 1.64),
    ],
    "gap": [
        _source("ensemble of 5, DUN gap", DUN, 3.63, 5.42, -0.32, 2.90, 1.13, 2.57),
        _source("mean-field VI, DUN gap", DUN, 3.46, 9.09, -0.94, 2.98, 0.97, 2.11),
        _source("dropout, DUN gap", DUN, 5.17, 8.10, -1.22, 3.18, 1.27, 2.34),
    ],
}  # fmt: skip
