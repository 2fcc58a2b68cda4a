"""The command; ``benchmarks/studies/bandits/study.py`` says what it does."""

from benchmarks.studies.bandits.study import STUDY
from benchmarks.studies.runner import main

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
