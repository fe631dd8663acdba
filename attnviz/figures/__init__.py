"""Drawing. ``Style`` is for users; figures come from results: ``analysis.figure("map")``."""

from typing import TYPE_CHECKING

from attnviz.lazy import lazily

if TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    from attnviz.figures.style import Style as Style
else:
    _MODULES = {"Style": "attnviz.figures.style"}
    __getattr__, __dir__, __all__ = lazily(__name__, _MODULES)
