"""Out of distribution: does the epistemic std tell points from a gap, or of a class never seen, from those like the data.

python -m benchmarks.studies.ood --data-dir DIR              gap splits of six UCI sets (``benchmarks/uci.py``)
python -m benchmarks.studies.ood --sets digits               scikit-learn's digits, five classes held out
python -m benchmarks.studies.ood --report                    docs/ood.md

Gap splits: a tenth of the points outside the gap is held out as well; the score of both kinds of test points is the
epistemic std, and the figure is the area under the curve of true against false alarms (AUROC): the chance that a point of the
gap gets the larger one. Every method of a split has the same training and test points.
"""

import argparse
from collections.abc import Iterator

from benchmarks.store import Record
from benchmarks.studies import splits
from benchmarks.studies.ood import digits
from benchmarks.studies.ood.report import NAMES, report
from benchmarks.studies.quality.methods import METHODS
from benchmarks.studies.runner import Given, Job, Study
from benchmarks.uci import load


def options(parser: argparse.ArgumentParser) -> None:
    splits.options(parser, NAMES)
    parser.add_argument("--device", default="cpu")


def jobs(given: Given) -> Iterator[Job]:
    """Method by method, set by set; not every method can learn the digits."""
    for method in given.methods:
        for name in given.sets:
            if name != "digits":
                indices = splits.chosen(given, name, "gap")
            else:
                indices = digits.CHOICES if method in digits.METHODS else ()
            yield from ({"set": name, "split": index, "method": method} for index in indices)


def run(job: Job, given: Given) -> Record:
    """How well one method tells the test points apart."""
    if job["set"] == "digits":
        return {"device": given.device, **digits.run(job["method"], job["split"], given.device)}
    split, gap = load(given.data_dir, job["set"], "gap", job["split"]).with_known(job["split"])
    forecast = METHODS[job["method"]](split.blind(), seed=job["split"], device=given.device)
    return {"device": given.device, "inside": len(split.x_test) - gap, "outside": gap, **splits.told_apart(forecast, gap)}


def line(record: Record) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in record["auroc"].items())


STUDY = Study("ood", __doc__ or "", ("set", "split", "method"), options, jobs, run, line, report, file_by="set")
