"""What figures are made of: look, fonts, page, matrix, grids and maps of heads, and their files.

``Look`` can be imported from here: ``from attnviz.figures import Look``. Figures themselves come from results:
``analysis.figure("map")``, ``analysis.draw("map", ax)``.
"""

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
