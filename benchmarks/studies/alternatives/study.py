"""Every alternative the paper names, over the same network, training budget and tuning budget, on the same data.

python -m benchmarks.studies.alternatives --data-dir DIR --jobs 2
python -m benchmarks.studies.alternatives --data-dir DIR --small --jobs 2     every method on one split of yacht, minutes
python -m benchmarks.studies.alternatives --data-dir DIR --sets yacht --methods epinet mean_field --kind gap --splits 0 1 2
python -m benchmarks.studies.alternatives --report                            docs/alternatives.md
python -m benchmarks.studies.alternatives.figure [--report]                   the picture

``benchmarks/uci.py`` describes the folder of the data, ``benchmarks/studies/runner.py`` how runs resume. Kind ``ood`` is the
AUROC of ``benchmarks/studies/ood`` on gap splits. The seed of a run is the number of its split.
"""

import argparse
from collections.abc import Hashable, Iterator

from benchmarks.methods.training.budget import STEPS
from benchmarks.methods.training.learner import BATCH, RATE, Ordinary
from benchmarks.methods.training.search import MOST_EPOCHS
from benchmarks.store import RESULTS, Record
from benchmarks.studies import splits
from benchmarks.studies.alternatives.methods import METHODS
from benchmarks.studies.alternatives.report import KINDS, report
from benchmarks.studies.runner import Given, Job, Study
from benchmarks.uci import load

TIMED = 600  # steps of the unit that are timed; the others take as long


class Small(argparse.Action):
    """The small form: one split of yacht, fewer steps, a folder of its own."""

    def __call__(self, parser: argparse.ArgumentParser, given: Given, *_: object) -> None:
        """Set all the options it stands for."""
        given.small, given.sets, given.splits, given.out = True, ["yacht"], [1], RESULTS / "small"


def options(parser: argparse.ArgumentParser) -> None:
    splits.options(parser, METHODS)
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--small", nargs=0, action=Small, default=False, help=Small.__doc__)


def jobs(given: Given) -> Iterator[Job]:
    """Method by method, set by set."""
    for method in given.methods:
        for name in given.sets:
            for kind in given.kind:
                for index in splits.chosen(given, name, "standard" if kind == "standard" else "gap"):
                    yield {"set": name, "kind": kind, "split": index, "method": method}


def family(job: Job) -> Hashable:
    """The methods of a family share what they train on a split."""
    return METHODS[job["method"]].family, job["set"], job["kind"], job["split"]


def unit(points: int, features: int) -> float:
    """Seconds to train one network of the common budget on so many points."""
    batches = -(-points // BATCH)
    epochs = max(1, TIMED // batches)
    seconds = splits.training_seconds(Ordinary, points, features, epochs, RATE, "cpu")
    return seconds * min(MOST_EPOCHS, STEPS // batches) / epochs


def run(job: Job, given: Given) -> Record:
    """Scores and costs of a method on a split."""
    ood, method = job["kind"] == "ood", METHODS[job["method"]]
    split, gap = load(given.data_dir, job["set"], "gap" if ood else job["kind"], job["split"]), 0
    if ood:
        split, gap = split.with_known(job["split"])
    one = unit(len(split.x), split.x.shape[1])
    forecast, cost = splits.timed(method.run, split, job["split"], "cpu", **(method.small_form if given.small else {}))
    found = splits.told_apart(forecast, gap) if ood else splits.scored(forecast, split)
    return {
        "seed": job["split"], "device": "cpu", "points": len(split.x), "queries": len(split.x_test), **found, **cost,
        "unit_seconds": one, "settings": forecast.chosen,
    }  # fmt: skip


def line(record: Record) -> str:
    found = f"auroc {record['auroc']['epistemic']:.3f}" if "auroc" in record else f"nll {record['scores']['nll']:.3f}"
    return f"{found} {record['seconds']:.1f} s"


STUDY = Study(
    "alternatives", __doc__ or "", ("set", "kind", "split", "method"), options, jobs, run, line, report, file_by="set",
    together=family,
)  # fmt: skip
