"""The documentation site; `make docs` builds it into docs/_build/html."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import gallery_examples  # noqa: E402

import ntkgp  # noqa: E402

project, author = "ntkgp", "The ntkgp authors"
release = version = ntkgp.__version__
copyright = f"{author}, MIT licence"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.py", "gallery/*.ipynb", "gallery/*.md5"]
templates_path = ["_templates"]
default_role = "code"
highlight_language = "none"  # for blocks without a language

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_attr_annotations = False
napoleon_use_ivar = True
toc_object_entries = False

sphinx_gallery_conf = {
    "examples_dirs": gallery_examples.prepare(HERE.parent / "examples", HERE / "_build" / "examples"),
    "gallery_dirs": str(HERE / "gallery"),
    "filename_pattern": r"\.py$",
    "within_subsection_order": "ExampleTitleSortKey",
    "image_scrapers": ("gallery_examples.saved_pictures",),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "min_reported_time": 3600,  # report no times: they depend on the machine
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "furo"
html_title = "ntkgp"
html_static_path = ["_static"]
html_css_files = ["ntkgp.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}


def setup(app: Any) -> None:
    """Fix two things in docstrings that Sphinx gets wrong."""
    app.connect("autodoc-process-docstring", stars_of_shapes)
    app.connect("autodoc-skip-member", methods_made_by_scikit_learn)


def stars_of_shapes(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the star of a shape, (*batch, q, d), which is no emphasis."""
    lines[:] = [re.sub(r"(?<![\\*`\w])\*(?=\w)(?![^`]*`\W*$)", r"\\*", line) for line in lines]


def methods_made_by_scikit_learn(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skip ``set_fit_request`` and similar methods, which scikit-learn adds."""
    return True if re.fullmatch(r"set_\w+_request", name) else None
