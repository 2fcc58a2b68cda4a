"""Turn the scripts of examples/ into the pages of the gallery; the scripts stay plain scripts that save their pictures."""

import re
import shutil
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

HEADER = """Examples
========

Short scripts, with their printed output and their pictures. ``python examples/NAME.py`` runs one; the tests set
``NTKGP_SMALL=1``, which makes each run in seconds.
"""


def prepare(examples: Path, folder: Path) -> str:
    """Copy the scripts into a folder, with the first line up to its colon as a heading; return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "GALLERY_HEADER.rst").write_text(HEADER, encoding="utf-8")
    for script in examples.glob("*.py"):
        first, rest = script.read_text(encoding="utf-8").removeprefix('"""').split("\n", 1)
        title, more = re.split(r"(?<=\?) |: |\.$", first, maxsplit=1)
        body = f"\n{more[0].upper()}{more[1:]}\n" if more else ""
        (folder / script.name).write_text(f'"""{title}\n{"=" * len(title)}\n{body}{rest}', encoding="utf-8")
    return str(folder)


def saved_pictures(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Move the pictures that a script has saved to its page."""
    moved = []
    for picture in sorted(Path(variables["src_file"]).parent.rglob("*.png")):
        target = next(variables["image_path_iterator"])
        shutil.move(picture, target)
        moved.append(target)
    return figure_rst(moved, settings["src_dir"])
