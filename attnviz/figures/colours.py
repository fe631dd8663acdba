"""The colours of what stands beside the cells of a picture."""

from typing import Any

from matplotlib import rcParams, rcParamsDefault

from attnviz.figures.look import Look

__all__ = ["outer_ink"]

_SETTINGS: tuple[Any, Any] = (rcParams, rcParamsDefault)


def outer_ink(look: Look, setting: str = "text.color") -> str:
    """The colour of a text that stands beside the cells, on a page that may be the caller's.

    The light theme is also what nobody asked for, so there the caller's own settings count, such as those of
    ``dark_background``; where these are matplotlib's own, and in the dark theme, it is the ink of the theme.

    Args:
        look: theme.
        setting: of matplotlib, for such a text.
    """
    theirs, default = (known[setting] for known in _SETTINGS)
    if look.theme != "light" or theirs == default or theirs in ("auto", "inherit"):
        return look.greys.ink
    return str(theirs)
