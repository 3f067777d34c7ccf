"""Sphinx: how the pages become a site.  ``make docs`` runs it, by way of docs/build.py."""

from __future__ import annotations

from sphinx.application import Sphinx

from docs.pages import INDEX, index_words
from docs.tables import expanded, field_value

project = "Iris"
copyright = "the authors of Iris"  # noqa: A001  (the name that Sphinx asks for)
html_title = "Iris"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

exclude_patterns = ["Thumbs.db", ".DS_Store"]
myst_heading_anchors = 4  # the anchors that GitHub gives
myst_enable_extensions = ["colon_fence", "deflist"]
myst_links_external_new_tab = False
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "native"

html_static_path = ["_static"]
html_css_files = ["iris.css"]
html_js_files = [("search.js", {"defer": "defer"})]  # read after Sphinx's own script of the search
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options: dict[str, object] = {"top_of_page_buttons": [], "navigation_with_keys": True}
if "plain" in globals()["tags"]:
    # Sphinx's own theme: what furo makes of the navigation takes more than half of the time.  For tests of the pages.
    html_theme = "basic"
    html_theme_options = {}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 72
maximum_signature_line_length = 72

copybutton_selector = "div:not(.highlight-output) > div.highlight pre"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


def setup(app: Sphinx) -> None:
    """Add what comes from the code, and have the words in the comments ``index:`` of pages be entries of the index."""
    app.connect("source-read", _index)
    app.connect(
        "autodoc-process-docstring", _field, priority=400
    )  # napoleon takes a colon in a first line for a type's


def _index(_app: Sphinx, _page: str, source: list[str]) -> None:
    entries = ", ".join(f"!{word}" for word in index_words(source[0]))
    source[0] = INDEX.sub(f"```{{index}} {entries}\n```", expanded(source[0]))


def _field(_app: Sphinx, _what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
    if name.startswith("iris.Config.") and (value := field_value(name.removeprefix("iris.Config."))):
        lines.insert(0, f"**{value}**.")
