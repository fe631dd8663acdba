"""What figures are made of. ``Look`` is for users; figures come from results: ``analysis.figure("map")``."""

from typing import TYPE_CHECKING

from attnviz.lazy import lazily

if TYPE_CHECKING:
    from attnviz.figures.look import Look

__all__ = ["Look"]

_MODULES = {"Look": "attnviz.figures.look"}

if not TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    __getattr__ = lazily(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
