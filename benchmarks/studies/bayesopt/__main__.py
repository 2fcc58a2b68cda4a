"""The command; ``benchmarks/studies/bayesopt/study.py`` says what it does."""

from benchmarks.studies.bayesopt.study import STUDY
from benchmarks.studies.runner import main

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
