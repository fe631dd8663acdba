"""Numbers that a user gives as a NumPy file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def real_numbers(path: str | Path) -> NDArray[Any]:
    """The array of a .npy file; OSError or ValueError where it is damaged, or holds anything but real numbers."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: one that promises more than it has fails
    except ValueError as error:
        raise ValueError(f"the file is damaged, or no array of numbers: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise ValueError(f"no real numbers: {getattr(array, 'dtype', 'several arrays')}")
    return np.array(array)
