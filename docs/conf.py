"""How Sphinx builds the site: `make docs` writes it to docs/_build/html, with every warning an error."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import gpufold

project, author = "gpufold", "gpufold developers"
copyright = "gpufold developers"
version = release = gpufold.__version__

ONLINE = os.environ.get("READTHEDOCS") == "True"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "drawings", "examples"]
suppress_warnings = ["sphinx_gallery.space_in_filename"]  # a checkout's folder may have one; no file has
default_role = "py:obj"
highlight_language = "text"  # of blocks without one; prompts mark sessions
pygments_style, pygments_dark_style = "friendly", "monokai"

# ---- documents in Markdown

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# ---- the reference, from docstrings

autodoc_typehints = "none"  # the docstrings say what parameters are
numpydoc_show_class_members = False
numpydoc_xref_param_type = ONLINE  # types link to other libraries
numpydoc_xref_aliases = {"bool": "bool", "callable": "collections.abc.Callable", "sequence": "collections.abc.Sequence"}
numpydoc_xref_ignore = {"optional", "of", "or", "them", "shape", "number", "array", "function"}

# ---- links to other libraries, which a build without a network leaves out

intersphinx_mapping = {
    name: (f"https://{address}/", None)
    for name, address in {
        "python": "docs.python.org/3",
        "numpy": "numpy.org/doc/stable",
        "cupy": "docs.cupy.dev/en/stable",
        "torch": "docs.pytorch.org/docs/stable",
        "dask": "docs.dask.org/en/stable",
        "jax": "docs.jax.dev/en/latest",
        "scipy": "docs.scipy.org/doc/scipy",
    }.items()
    if ONLINE
}

# ---- the examples, each of which the build runs

sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": ["examples/tutorial", "examples/gallery"],
    "gallery_dirs": ["tutorial", "gallery"],
    "filename_pattern": r"/\w+\.py$",
    "abort_on_example_error": True,
    "capture_repr": (),  # an example shows what it prints
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 10**6,
    "write_computation_times": False,
    "show_signature": False,
    "within_subsection_order": "FileNameSortKey",
}

# ---- how it looks

templates_path = ["_templates"]
html_theme = "pydata_sphinx_theme"
html_title = f"gpufold {version}"
html_favicon = html_logo = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
WRITTEN = [path.stem for path in Path(__file__).parent.glob("*.md")]
"""Pages with a source file, which readers can edit."""
html_context = {
    "default_mode": "auto",
    "github_user": "gpufold",
    "github_repo": "gpufold",
    "github_version": "main",
    "doc_path": "docs",
}
SWITCHER = "_static/switcher.json"
html_theme_options = {
    # every version's page has the newest list; a build without a network checks and shows its own
    "switcher": {
        "json_url": f"https://gpufold.readthedocs.io/en/latest/{SWITCHER}" if ONLINE else SWITCHER,
        "version_match": os.environ.get("READTHEDOCS_VERSION", "latest"),
    },
    "check_switcher": not ONLINE,
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    "logo": {"text": html_title},
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": {key: ["page-toc", "edit-this-page"] for key in WRITTEN}
    | {key: ["page-toc"] for key in ["api/generated/*", "gallery/*", "tutorial/*"]},
    "use_edit_page_button": True,
    "icon_links": [{"name": "Source", "url": "https://github.com/gpufold/gpufold", "icon": "fa-brands fa-github"}],
}
html_sidebars: dict[str, list[str]] = {page: [] for page in ("index", "tutorial/*")}

SHAPE = re.compile(r"(?<!\w)\((?:[\w, ]|\(\w+\))*\*(?:[\w, *]|\(\w+\))*\)")
"""A shape such as (P, *lead, *block_shape), whose asterisks are not emphasis."""


FIGURES = {
    "col2im": ("Columns become blocks, which are added where they overlap", "col2im fold"),
    "im2col": ("Blocks of an image become columns", "im2col unfold"),
    "blocks": ("Overlapping blocks of an array, and their sum", "array_to_blocks blocks_to_array"),
    "positions": ("Blocks at positions of an array are added", "add_blocks add_blocks_"),
    "take_blocks": ("Blocks at positions of an array are extracted", "take_blocks"),
    "grid_positions": ("Positions of tiles along an axis", "grid_positions"),
    "stitcher": ("Overlapping tiles are averaged", "Stitcher map_tiles stitch average"),
    "batch_to_space": ("Images of a batch are interleaved", "batch_to_space"),
    "space_to_batch": ("Blocks of an image become a batch", "space_to_batch"),
}
"""The drawings in drawings/: their description, and the functions whose pages show them after the summary."""
FIGURE_OF = {name: figure for figure, (_, names) in FIGURES.items() for name in names.split()}


def setup(app: Any) -> None:
    """Show the shapes of parameters as code, before numpydoc converts docstrings to markup."""
    app.connect("autodoc-process-docstring", _mark_shapes, priority=400)
    app.connect("autodoc-process-docstring", _add_figure, priority=401)


def _mark_shapes(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line if "``" in line or ">>>" in line else SHAPE.sub(r"``\g<0>``", line) for line in lines]


def _add_figure(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Show the drawing of a function before its first example or section."""
    figure = FIGURE_OF.get(name.rpartition(".")[2])
    if figure and name.startswith("gpufold.") and what in ("function", "class"):
        first = next((at for at, line in enumerate(lines) if line.startswith((">>>", "---"))), 0)
        at = first - 1 if lines[first : first + 1] and lines[first].startswith("---") else first
        lines[at:at] = [f".. image:: /drawings/{figure}.svg", f"   :alt: {FIGURES[figure][0]}", ""]
