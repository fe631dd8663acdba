"""Drawing. ``Style`` is for users; figures come from results: ``analysis.figure("map")``."""

from attnviz.figures.style import Style as Style
