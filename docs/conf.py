"""The documentation site: `make docs` builds it into build/docs, warnings being errors."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Mithridate"
author = "The Mithridate maintainers"
project_copyright = "The Mithridate maintainers, Apache-2.0"
version = release = version_of("mithridate")

extensions = ["myst_parser", "sphinx.ext.autodoc", "from_package"]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

highlight_language = "bash"  # of blocks that do not say theirs
default_role = "code"  # docstrings write names in single backticks
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False}
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"Mithridate {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
# Furo is self-contained: no font, script or style comes from elsewhere. tests/test_docs_site.py
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#a3480a",
        "color-brand-content": "#a3480a",
        "color-brand-visited": "#8a5a2b",
    },
    "dark_css_variables": {
        "color-brand-primary": "#ffa657",
        "color-brand-content": "#ffa657",
        "color-brand-visited": "#d9a066",
    },
}
