"""Five pictures held against stored ones, closely enough to tell a blank, a transposed or a shifted pattern.

After an intended change: ``python -m tests.figures.test_pictures`` draws them anew; look at each before committing it.
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.figures.style import Style, figure_bytes
from tests.support.hand_made import hand_made

STORED = Path(__file__).parent / "pictures"
CLOSE = 1.0
"""Mean difference of a pixel, of 255, that other versions of fonts and matplotlib may make."""

VIEWS: dict[str, Callable[[Analysis], Figure]] = {
    "heatmap": lambda analysis: analysis.figure("heads", select="L0H1"),
    "overview": lambda analysis: analysis.figure("overview"),
    "lines": lambda analysis: analysis.figure("lines", select="L0H1"),
    "dark-log": lambda analysis: analysis.figure("heads", Style("dark", "log"), select="L1H0"),
    "mean": lambda analysis: analysis.figure("mean"),
}


def patterns() -> Tensor:
    """[2 layers, 2 heads, 6, 6]: no row like another, none symmetric, little on the diagonal."""
    steps = torch.arange(6)
    heads = [torch.softmax(-1.5 * (steps[None] - rate * steps[:, None]).abs() * width, -1) for rate, width in WAYS]
    return torch.stack(heads).reshape(2, 2, 6, 6)


WAYS = ((0.4, 1.0), (0.2, 0.5), (0.7, 0.8), (0.0, 0.3))


def drawn(view: str, pattern: Tensor) -> NDArray[np.int16]:
    content = figure_bytes(VIEWS[view](hand_made(patterns=pattern)), "png")
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(np.int16)


def apart(one: NDArray[np.int16], other: NDArray[np.int16]) -> float:
    """Mean difference of a pixel; that of black and white where the sizes differ."""
    return float(np.abs(one - other).mean()) if one.shape == other.shape else 255.0


def stored(view: str) -> NDArray[np.int16]:
    return np.asarray(Image.open(STORED / f"{view}.png").convert("RGB")).astype(np.int16)


@pytest.mark.parametrize("view", VIEWS)
def test_a_picture_is_the_stored_one_and_none_of_shifted_patterns(view: str) -> None:
    assert apart(drawn(view, patterns()), stored(view)) < CLOSE
    assert apart(drawn(view, patterns().roll(1, -1)), stored(view)) > 1.5 * CLOSE


def test_a_transposed_picture_would_be_noticed() -> None:
    transposed = patterns().transpose(-1, -2)
    assert apart(drawn("heatmap", transposed / transposed.sum(-1, keepdim=True)), stored("heatmap")) > 1.5 * CLOSE


if __name__ == "__main__":
    STORED.mkdir(exist_ok=True)
    for name in VIEWS:
        Image.fromarray(drawn(name, patterns()).astype(np.uint8)).save(STORED / f"{name}.png", optimize=True)
