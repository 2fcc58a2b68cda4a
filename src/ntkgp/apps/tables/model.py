"""A posterior for tables with named columns."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_noise
from ntkgp._system.check_options import check_count
from ntkgp._system.progress import progress_bar
from ntkgp.apps.tables.columns import CATEGORY, NUMBER, Column, TableError, encode
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.distributed.group import Group
from ntkgp.linalg.cgls import CGLS
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.method import LowRank, LowRankPosterior
from ntkgp.posterior.prediction import Prediction
from ntkgp.problem.build import build_problem
from ntkgp.problem.gathering import rows_of_all
from ntkgp.problem.source import Source
from ntkgp.tuning.group_noise import group_noise
from ntkgp.tuning.recipe import tune_table
from ntkgp.tuning.result import Tuned


class Size(NamedTuple):
    """How large the recipe is made for a number of rows: what costs grows with both.

    Features are trained for longer where there are more rows than that sees: it cannot learn them by heart.
    """

    width: int
    warm_networks: int
    warm_steps: tuple[int, ...]


DENSE = 8000  # rows times targets up to which the posterior is exact
MANY = 200_000  # rows times targets beyond which the networks are smaller still
SMALL, LARGE, LARGEST = (
    Size(512, 6, (0, 60, 200)),
    Size(64, 2, (0, 200, 1000, 4000)),
    Size(32, 2, (0, 1000, 4000, 16000)),
)
PILOT, JUDGES = 50_000, 10_000  # rows of a first fit, and others by which the noise is judged, where there are so many
ROUNDS = 2  # of group noise given the kernel, and the kernel given group noise
MOST = 1e150  # values whose squares can still be added up
ROWS = 16384  # of a table that are predicted at a time


@dataclass(frozen=True)
class Options:
    """What a fit depends on beside the data.

    Args:
        width: of the recipe's hidden layers (4·width of the local one, at most 64 of those trained for features); None for 512
            up to `DENSE` rows times targets, 64 up to `MANY`, and 32 beyond.
        warm_networks: how many networks are trained for features; None for 6 up to `DENSE` and 2 beyond.
        rank: of the low-rank posterior beyond `DENSE` rows.
        points: rows that hyper-parameters are tuned on.
        steps: as for :func:`ntkgp.tune`.
        starts: as for :func:`ntkgp.tune`.
        seed: of all randomness.
        device: where to compute.
        progress: show progress bars.
    """

    width: int | None = None
    warm_networks: int | None = None
    rank: int = 256
    points: int = 2000
    steps: int = 100
    starts: int = 3
    seed: int = 0
    device: str = "cpu"
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "rank", "points", "steps", "starts"):
            if (value := getattr(self, name)) is not None:
                check_count(value, name, 1)


@dataclass(frozen=True)
class Noise:
    """The noise variance of new rows, in squared units of the targets.

    Attributes:
        variances: (1, C); or (G + 1, C), one for each group and the mean over the training rows for any other; or None where
            columns of the table say it.
        group: the column that says to which group a row belongs.
        columns: that hold the variances, one for each target.
    """

    variances: Float[Tensor, "G C"] | None
    group: Column | None = None
    columns: tuple[str, ...] = ()

    def at(self, table: pl.DataFrame) -> Float[Tensor, "M C"] | None:
        """Of the rows of a table; None where it does not say."""
        if self.variances is None:
            if any(name not in table.columns for name in self.columns):
                return None
            return known_noise(table, self.columns)
        if self.group is None:
            return self.variances.expand(len(table), -1)
        codes = self.group.codes(table[self.group.name]).cast(pl.Int64).fill_null(len(self.group.categories))
        return self.variances[torch.from_numpy(codes.to_numpy(writable=True))]


@dataclass(frozen=True)
class TableModel:
    """A posterior with the names, kinds and units of the columns it takes and gives.

    Example:
        >>> import polars as pl
        >>> table = pl.DataFrame({"hours": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"], "price": [10.0, 22.0, 30.0]})
        >>> columns = [Column.of(table[name]) for name in ("hours", "kind")]
        >>> model = fit_table(table, columns, ["price"], options=Options(width=8, steps=5, starts=1))
        >>> model.predict(table).mean.shape
        torch.Size([3, 1])
    """

    columns: tuple[Column, ...]
    targets: tuple[str, ...]
    ignored: tuple[str, ...]
    inputs: Scaling
    outputs: Scaling
    noise: Noise
    module: nn.Module
    posterior: Posterior
    fitted: dict[str, Any]  # how, in words and numbers

    @property
    def needed(self) -> list[str]:
        """The columns without which nothing can be predicted."""
        group = [] if self.noise.group is None else [self.noise.group.name]
        return list(dict.fromkeys([*(column.name for column in self.columns), *group]))

    def mean(self, table: pl.DataFrame, progress: bool = False) -> Float[Tensor, "M C"]:
        """The mean alone at the rows of a table, in the units of the targets; no work for variances."""
        parts = [self.posterior.mean(self._points(part)).cpu().double() for part in self._parts(table, progress)]
        return self.outputs.center + self.outputs.scale * torch.cat(parts)

    def predict(self, table: pl.DataFrame, progress: bool = False) -> Prediction:
        """The posterior at the rows of a table, (M, C), in the units of the targets. Memory: that of ROWS rows."""
        parts = [self._predict(part) for part in self._parts(table, progress)]
        noise = [part.noise_var for part in parts if part.noise_var is not None]
        joined = (torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance", "lower", "upper"))
        return Prediction(*joined, noise_var=torch.cat(noise) if noise else None)

    def _parts(self, table: pl.DataFrame, progress: bool) -> Iterator[pl.DataFrame]:
        """Some rows at a time, and a progress bar."""
        with progress_bar(progress, total=len(table), desc="predicting", unit="row", unit_scale=True) as bar:
            for start in range(0, len(table), ROWS):
                yield table.slice(start, ROWS)
                bar.update(min(ROWS, len(table) - start))

    def _points(self, table: pl.DataFrame) -> Float[Tensor, "M D"]:
        return self.inputs.apply(encode(table, self.columns)).to(next(self.module.parameters()))

    def _predict(self, table: pl.DataFrame) -> Prediction:
        # The noise is added below: that of the fit may be another one for each training row.
        standardised = self.posterior.predict(self._points(table), noise_var=1.0)
        found = Prediction(*(t.cpu().double() for t in vars(standardised).values()))
        return replace(self.outputs.undo(found), noise_var=self.noise.at(table))


def fit_table(
    table: pl.DataFrame,
    columns: Sequence[Column],
    targets: Sequence[str],
    *,
    ignored: Sequence[str] = (),
    noise_columns: Sequence[str] = (),
    group: str | None = None,
    options: Options | None = None,
    ranks: Group | None = None,
) -> TableModel:
    """Tune the recipe for tables and compute its posterior: exact up to 8,000 rows times targets, of low rank beyond.

    Args:
        table: without missing values.
        columns: the features.
        targets: names of the columns to predict.
        ignored: names of columns that are there and not used.
        noise_columns: names of columns with the known noise variance of each row, one for each target.
        group: name of a column; each of its values has a noise variance of its own, learned.
        options: what else it depends on.
        ranks: processes that each have some of the rows. Hyper-parameters are tuned by each on the same rows: all, or of very
            many 60,000 drawn at random; the posterior is that of all.
    """
    options, started = options or Options(), time.perf_counter()
    raw = numbers(table, targets)
    rows = len(raw) if ranks is None else int(ranks.total(len(raw)))
    large = rows * len(targets) > DENSE
    features = encode(table, columns)
    for name in dict.fromkeys([*(column.name for column in columns if column.kind == NUMBER), *targets]):
        most = float(table[name].cast(pl.Float64).abs().max() or 0.0)  # pyright: ignore[reportArgumentType]
        if most > MOST:
            raise TableError(f"column {name!r} holds values of up to {most:.1e}, whose squares overflow; rescale it")
    scaling = Scaling.of if ranks is None else partial(Scaling.of_all, group=ranks)
    inputs, outputs = scaling(features), scaling(raw)
    # Float64 is for the dense factorisation; the low-rank solver refines float32 products by itself.
    place = {"device": options.device, "dtype": torch.float32 if large else torch.float64}
    x, y = inputs.apply(features).to(**place), outputs.apply(raw).to(**place)
    size = SMALL if not large else LARGE if rows * len(targets) <= MANY else LARGEST
    width = size.width if options.width is None else options.width
    warm_networks = size.warm_networks if options.warm_networks is None else options.warm_networks

    def tuned_with(noise_var: str | Tensor) -> tuple[Tuned, torch.Generator]:
        generator = torch.Generator().manual_seed(options.seed)
        tuned = tune_table(
            x,
            y,
            noise_var=noise_var,
            width=width,
            local_width=4 * width,
            warm_networks=warm_networks,
            warm_width=min(64, width),
            warm_steps=size.warm_steps,
            points=options.points,
            starts=options.starts,
            steps=options.steps,
            generator=generator,
            progress=options.progress,
        )
        return tuned, generator

    def posterior_of(tuned: Tuned, x: Tensor, y: Tensor, generator: torch.Generator, all_ranks: bool = False) -> Posterior:
        number = rows * len(targets) if all_ranks else y.numel()
        rank = min(options.rank, number, sum(p.numel() for p in tuned.module.parameters()))
        # The mean is then far closer than it is certain: off by 1e-5 of some √(N·signal/noise) standard deviations.
        method = LowRank(rank=rank, tail=16, solver=CGLS(tol=1e-5)) if large else Exact()
        together = ranks if all_ranks else None
        return tuned.fit(x, y, method=method, generator=generator, progress=options.progress, group=together)

    square, judges = outputs.scale.square(), 0
    known = known_noise(table, noise_columns) / square if noise_columns else raw[:, :0]
    codes, column = torch.zeros(len(raw), dtype=torch.int64), None
    if group is not None:
        texts = table[group].cast(pl.String).unique().sort().to_list()
        texts = texts if ranks is None else sorted({text for some in ranks.facts(texts) for text in some})
        column = Column(group, CATEGORY, tuple(texts))
        codes = torch.from_numpy(column.codes(table[group]).cast(pl.Int64).to_numpy(writable=True))
    mine = (x, y, known, codes)  # of this rank; the others are of all ranks, for what each does by itself
    if ranks is not None:
        x, y, known, codes = rows_of_all(ranks, [*mine], PILOT + JUDGES, torch.Generator().manual_seed(options.seed))
        mine = mine if large else (x, y, known, codes)
    if noise_columns:
        tuned, generator = tuned_with(known)
        tuned = replace(tuned, noise_var=mine[2])
        noise = Noise(None, columns=tuple(noise_columns))
    elif column is not None:
        members = codes.to(options.device)
        tuned, generator = tuned_with("outputs")
        variances = torch.as_tensor(tuned.noise_var, dtype=torch.float64).reshape(1, -1).expand(len(column.categories), -1)
        for _ in range(ROUNDS):
            variances = _by_group(tuned, x, y, members, variances, options)
            tuned, generator = tuned_with(variances[members])
        variances = _by_group(tuned, x, y, members, variances, options)
        tuned = replace(tuned, noise_var=variances[mine[3].to(options.device)])
        noise = Noise(torch.cat([variances, variances[members].mean(dim=0, keepdim=True)]).cpu() * square, column)
    else:
        tuned, generator = tuned_with("outputs")
        if len(x) >= PILOT + JUDGES:
            order = torch.randperm(len(x), generator=generator)[: PILOT + JUDGES].to(x.device)
            first, judging = order[:PILOT], order[PILOT:]
            pilot, judges = posterior_of(tuned, x[first], y[first], generator), JUDGES
            tuned = replace(tuned, noise_var=_noise_beyond(pilot, x[judging], y[judging]))
        noise = Noise(torch.as_tensor(tuned.noise_var, dtype=torch.float64).reshape(1, -1).cpu() * square)
    posterior = posterior_of(tuned, *mine[:2], generator, all_ranks=large)
    lost = tuned.points * float(outputs.scale.log().sum())  # from standardised targets to their own units
    fitted = {
        "rows": rows,
        "ranks": 1 if ranks is None else ranks.size,
        "features": features.shape[1],
        "method": type(posterior).__name__.removesuffix("Posterior"),
        **_reached(posterior),
        "dtype": str(x.dtype).removeprefix("torch."),
        "width": width,
        "warm_networks": len(tuned.module.networks) - 2 if isinstance(tuned.module, SumOfNetworks) else 0,
        "warm_steps": 0 if tuned.warm_up is None else tuned.warm_up.steps,
        "parameters": sum(p.numel() for p in tuned.module.parameters()),
        "tuned_on": tuned.points,
        "noise_judged_on": judges,
        "log_marginal_likelihood": tuned.log_marginal_likelihood - lost,
        "leave_one_out": tuned.leave_one_out,
        "seed": options.seed,
        "seconds": round(time.perf_counter() - started, 2),
    }
    return TableModel(tuple(columns), tuple(targets), tuple(ignored), inputs, outputs, noise, tuned.module, posterior, fitted)


def _reached(posterior: Posterior) -> dict[str, Any]:
    """What a low-rank posterior chose and how far its solver came; nothing of an exact one."""
    if not isinstance(posterior, LowRankPosterior):
        return {"rank": None, "side": None, "iterations": None, "accuracy": None, "stages": None}
    return {
        "rank": posterior.head.rank,
        "side": posterior.side,
        "iterations": posterior.solution.iterations,
        "accuracy": posterior.solution.accuracy,
        "stages": {name: round(seconds, 2) for name, seconds in posterior.seconds.items()},
    }


def _noise_beyond(posterior: Posterior, x: Tensor, y: Tensor) -> Float[Tensor, "1 C"]:
    """The variance of each target by rows the posterior has not seen: their squared errors less what it did not know.

    Hyper-parameters are tuned on few rows, among them some that features were trained on. With many rows more, the noise can be
    judged without either; also what the networks are too small to follow then counts as noise.
    """
    p = posterior.predict(x)
    assert p.noise_var is not None
    errors = (y - p.mean).double().square() - p.variance.double()
    return torch.maximum(errors.mean(dim=0, keepdim=True), 0.01 * p.noise_var[:1].double())


def known_noise(table: pl.DataFrame, names: Sequence[str]) -> Float[Tensor, "N C"]:
    """Columns of variances, checked."""
    values = numbers(table, names)
    for name, column in zip(names, values.unbind(1), strict=True):
        bad = (column <= 0).nonzero().flatten()
        if len(bad):
            raise TableError(
                f"column {name!r} must hold positive variances, got {float(column[bad[0]]):.4g} in row {int(bad[0]) + 1}"
            )
    return check_noise(values, (len(values), len(names)))


def _by_group(tuned: Tuned, x: Tensor, y: Tensor, members: Tensor, start: Tensor, options: Options) -> Float[Tensor, "G C"]:
    """The variance of each group and target, given the kernel, on at most `points` rows."""
    outputs = y.shape[1]
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(options.seed))
    chosen = chosen[: max(1, options.points // outputs)].to(x.device)
    source = Source(x[chosen], y[chosen])
    problem = build_problem(tuned.module, source, prior_var=tuned.prior_var, dtype=torch.float64)
    groups = (outputs * members[chosen].unsqueeze(1) + torch.arange(outputs, device=x.device)).flatten()
    found = group_noise(problem.operators.jacobian.gram(), problem.data.residual, groups, start.to(x.device).flatten())
    return found.view(-1, outputs)


def numbers(table: pl.DataFrame, names: Sequence[str]) -> Float[Tensor, "N C"]:
    """Columns of numbers, in float64."""
    for name in names:
        if not table.schema[name].is_numeric():
            raise TableError(f"column {name!r} must hold numbers, got type {table.schema[name]}")
    return torch.stack([torch.from_numpy(table[name].cast(pl.Float64).to_numpy(writable=True)) for name in names], dim=1)
