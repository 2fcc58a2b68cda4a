"""``python -m ntkgp``: the command line, for launchers that start modules (``torchrun -m ntkgp fit …``)."""

from ntkgp.cli import app

if __name__ == "__main__":
    app(prog_name="ntkgp")
