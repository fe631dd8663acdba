"""One HTML file from template, style, script and data, with a policy that lets nothing else run.

Data is text to the browser (``application/json``, every ``<`` escaped), and the script writes it with ``textContent``
alone; the policy names the hashes of the page's own script and style, and allows no network.
"""

import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

MODULES = ("patterns.js", "scene.js", "pictures.js", "dom.js", "heads.js", "head.js", "examples.js", "page.js")
"""The script's modules, each after those that it imports."""

_IMPORT = re.compile(r"^import\s[^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?function|const|class)", re.MULTILINE)


def page_html(data: dict[str, Any], theme: str = "light") -> str:
    """The page.

    Args:
        data: what it shows; see ``PageData`` in ``patterns.js``.
        theme: ``dark``, or ``light`` for what the reader's system prefers.
    """
    style, script = _source("page.css"), script_text()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "policy": policy,
        "theme": "dark" if theme == "dark" else "auto",
        "style": style,
        "script": script,
        "data": content,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _source("page.html"))


@cache
def script_text() -> str:
    """All modules as one: a page that is opened from disk cannot import others."""
    modules = (_IMPORT.sub("", _source(name)) for name in MODULES)
    return "\n".join(_EXPORT.sub("", module) for module in modules)


def _source(name: str) -> str:
    return (files("attnviz.page") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}"
