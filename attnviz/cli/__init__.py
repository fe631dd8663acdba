"""The command line: one file a command, the options that they share, and the program that they make up."""

from typing import TYPE_CHECKING

from attnviz.cli.start import main
from attnviz.lazy import lazily

if TYPE_CHECKING:
    from attnviz.cli.program import app

__all__ = ["app", "main"]

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, {"app": "attnviz.cli.program"})  # heavy; signals are handled before
