"""An image whose pixels are those of the file."""

from typing import Any

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.image import AxesImage

__all__ = ["ExactImage"]


class ExactImage(AxesImage):
    """An image that is copied, not resampled, where its pixels are those of the file: a quarter less memory."""

    def make_image(
        self, renderer: RendererBase, magnification: float = 1.0, unsampled: bool = False
    ) -> tuple[Any, float, float, Any]:
        """The pixels from the lowest row on, and where they begin."""
        array, (left, right, bottom, top) = np.asarray(self.get_array()), self.get_extent()
        (x0, y0), (x1, y1) = self.get_transform().transform([(left, bottom), (right, top)])
        if unsampled or abs(x1 - x0 - array.shape[1]) > 0.01 or abs(y1 - y0 - array.shape[0]) > 0.01:
            made: tuple[Any, float, float, Any] = super().make_image(renderer, magnification, unsampled)
            return made
        return array[::-1], round(x0), round(y0), None

    def autoscale_None(self) -> None:  # noqa: N802 - as matplotlib
        """Nothing to do for a colour bar: the scale has its ends, and the pixels are colours."""
