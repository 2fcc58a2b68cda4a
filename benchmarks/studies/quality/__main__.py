"""The command; ``benchmarks/studies/quality/study.py`` says what it does."""

from benchmarks.studies.quality.study import STUDY
from benchmarks.studies.runner import main

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
