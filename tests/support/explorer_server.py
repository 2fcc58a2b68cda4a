"""``ntkgp explore`` in a process of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running_server() -> Iterator[tuple[str, int]]:
    """``ntkgp explore`` in a process of its own: its address and process id."""
    command = [sys.executable, "-c", "from ntkgp.cli import app; app()", "explore", "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = ""
    while not (match := re.search(r"http://127\.0\.0\.1:\d+/", said)):
        line = process.stdout.readline()
        assert line, f"the server did not start: {said}"
        said += line
    try:
        yield match.group(), process.pid
    finally:
        process.terminate()
        process.communicate(timeout=20)
