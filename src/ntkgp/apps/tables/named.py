"""A table model with named columns, as the command line fits, saves and queries it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_noise
from ntkgp._system.progress import progress_bar
from ntkgp.apps.tables.columns import CATEGORY, NUMBER, Column, TableError, encode
from ntkgp.apps.tables.fitting import NoiseGiven, fit_table
from ntkgp.apps.tables.model import TableModel
from ntkgp.apps.tables.options import TableOptions
from ntkgp.distributed.group import Group
from ntkgp.posterior.prediction import Prediction

LARGEST_VALUE = 1e150  # sums of its square do not overflow
CHUNK_ROWS = 16384  # rows predicted at a time


@dataclass(frozen=True)
class NamedColumns:
    """Which columns of a table are features, targets, noise variances, groups of equal noise, or ignored."""

    features: tuple[Column, ...]
    targets: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()  # columns of known variances, one per target
    group: str | None = None  # column with one noise variance per value


@dataclass(frozen=True)
class NamedModel:
    """A table model that reads its inputs from the columns of a table by name.

    Example:
        >>> import polars as pl
        >>> table = pl.DataFrame({"hours": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"], "price": [10.0, 22.0, 30.0]})
        >>> columns = NamedColumns(tuple(Column.of(table[name]) for name in ("hours", "kind")), ("price",))
        >>> model = fit_named(table, columns, TableOptions(width=8, steps=5, starts=1))
        >>> model.predict(table).mean.shape
        torch.Size([3, 1])
    """

    columns: NamedColumns
    model: TableModel
    group: Column | None = None  # the group column; each category has a noise variance

    @property
    def needed(self) -> list[str]:
        """The columns that a prediction requires."""
        group = [] if self.group is None else [self.group.name]
        return list(dict.fromkeys([*(column.name for column in self.columns.features), *group]))

    def mean(self, table: pl.DataFrame, progress: bool = False) -> Float[Tensor, "M C"]:
        """The mean only at the rows of a table, in the units of the targets; skips the work for variances."""
        return torch.cat([self.model.mean(encode(part, self.columns.features)) for part in self._parts(table, progress)])

    def predict(self, table: pl.DataFrame, progress: bool = False) -> Prediction:
        """The posterior at the rows of a table, (M, C), in the units of the targets. Memory: one chunk of CHUNK_ROWS rows."""
        parts = [self.model.predict(encode(part, self.columns.features), self.noise_at(part))
                 for part in self._parts(table, progress)]  # fmt: skip
        noise = [part.noise_var for part in parts if part.noise_var is not None]
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance", "lower", "upper")}
        return Prediction(**joined, noise_var=torch.cat(noise) if noise else None, confidence=parts[0].confidence)

    def noise_at(self, table: pl.DataFrame) -> Float[Tensor, "M C"] | None:
        """The noise variance of each row of a table; None if all rows share one, or if the table lacks the noise columns."""
        if self.columns.noise:
            missing = any(name not in table.columns for name in self.columns.noise)
            return None if missing else known_noise(table, self.columns.noise)
        if self.group is None or self.model.noise_var is None:
            return None
        codes = self.group.codes(table[self.group.name]).cast(pl.Int64).fill_null(len(self.group.categories))
        return self.model.noise_var[torch.from_numpy(codes.to_numpy(writable=True))]

    def _parts(self, table: pl.DataFrame, progress: bool) -> Iterator[pl.DataFrame]:
        """Chunks of rows, with a progress bar."""
        with progress_bar(progress, total=len(table), desc="predicting", unit="row", unit_scale=True) as bar:
            for start in range(0, len(table), CHUNK_ROWS):
                yield table.slice(start, CHUNK_ROWS)
                bar.update(min(CHUNK_ROWS, len(table) - start))


def fit_named(
    table: pl.DataFrame, columns: NamedColumns, options: TableOptions | None = None, ranks: Group | None = None
) -> NamedModel:
    """Fit the table model to named columns of a table without missing values; each of the `ranks` has some of the rows."""
    y, x = numbers(table, columns.targets), encode(table, columns.features)
    numeric = [column.name for column in columns.features if column.kind == NUMBER]
    for name in dict.fromkeys([*numeric, *columns.targets]):
        largest = float(table[name].cast(pl.Float64).abs().max() or 0.0)  # pyright: ignore[reportArgumentType]
        if largest > LARGEST_VALUE:
            raise TableError(f"column {name!r} holds values up to {largest:.1e}; their squares overflow: rescale the column")
    noise, group = NoiseGiven(), None
    if columns.noise:
        noise = NoiseGiven(known=known_noise(table, columns.noise))
    elif columns.group is not None:
        texts = table[columns.group].cast(pl.String).unique().sort().to_list()
        texts = texts if ranks is None else sorted({text for some in ranks.facts(texts) for text in some})
        group = Column(columns.group, CATEGORY, tuple(texts))
        codes = torch.from_numpy(group.codes(table[columns.group]).cast(pl.Int64).to_numpy(writable=True))
        noise = NoiseGiven(groups=codes, group_count=len(texts))
    return NamedModel(columns, fit_table(x, y, options, noise, ranks), group)


def known_noise(table: pl.DataFrame, names: Sequence[str]) -> Float[Tensor, "N C"]:
    """Read columns of noise variances and check that they are positive."""
    values = numbers(table, names)
    for name, column in zip(names, values.unbind(1), strict=True):
        bad = (column <= 0).nonzero().flatten()
        if len(bad):
            raise TableError(
                f"column {name!r} must hold positive variances, got {float(column[bad[0]]):.4g} in row {int(bad[0]) + 1}"
            )
    return check_noise(values, (len(values), len(names)))


def numbers(table: pl.DataFrame, names: Sequence[str]) -> Float[Tensor, "N C"]:
    """Read columns of numbers, in float64."""
    for name in names:
        if not table.schema[name].is_numeric():
            raise TableError(f"column {name!r} must hold numbers, got type {table.schema[name]}")
    return torch.stack([torch.from_numpy(table[name].cast(pl.Float64).to_numpy(writable=True)) for name in names], dim=1)
