"""The command ``attnviz compare``: how differently the heads attend on two sides.

    differences -> words, sizes -> figures, pages -> drawing
      -> document, tables -> saving

The names below are imported when first asked for: ``from attnviz import comparison``.
"""

from typing import TYPE_CHECKING

from attnviz.lazy import lazily

if TYPE_CHECKING:
    from attnviz.commands.compare.drawing import (
        difference_colours,
        draw_difference,
        draw_difference_grid,
        draw_difference_map,
    )
    from attnviz.commands.compare.figures import difference_plans, plan_difference_grid, plan_difference_map

__all__ = [
    "difference_colours",
    "difference_plans",
    "draw_difference",
    "draw_difference_grid",
    "draw_difference_map",
    "plan_difference_grid",
    "plan_difference_map",
]

_MODULES = {
    "difference_colours": "attnviz.commands.compare.drawing",
    "difference_plans": "attnviz.commands.compare.figures",
    "draw_difference": "attnviz.commands.compare.drawing",
    "draw_difference_grid": "attnviz.commands.compare.drawing",
    "draw_difference_map": "attnviz.commands.compare.drawing",
    "plan_difference_grid": "attnviz.commands.compare.figures",
    "plan_difference_map": "attnviz.commands.compare.figures",
}

if not TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    __getattr__ = lazily(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
