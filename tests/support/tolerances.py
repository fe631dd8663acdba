"""How far two right computations of the same numbers may be apart: what rounding does, times ten.

Kernels add in different orders, so two of them agree to the bit only by luck. A sum of n numbers is rounded n times, up
or down at random: it is off by about sqrt(n) eps of its size (Higham & Mary 2019). A weight w of a softmax moves by
w (1 - w) times the difference of two scores, so by half the error of a score at most, and a score is such a sum, of the
size of the largest score. Wrong formulas move weights by 0.001 to 1.

Steps that a model takes in float32 whatever its number format (softmax, cos, sin, norms) are rounded as float32 is: a
softmax over more or fewer keys, or with other vector instructions, differs by 6e-8 in a float64 model, too.
"""

import math

import torch

MARGIN = 10.0
TERMS = 64
"""Numbers in a sum: d_model, d_head times heads, or the keys of a text, in the tests' models."""

LARGEST_SCORE = 50.0
"""Of the sharpened models of the tests; of the few that are sharper the score itself is looked at."""


def of_sums(dtype: torch.dtype, size: float = 1.0) -> float:
    """Of sums, means and products of the same numbers, which have this size."""
    return MARGIN * math.sqrt(TERMS) * torch.finfo(dtype).eps * size


def of_weights(dtype: torch.dtype, largest_score: float = LARGEST_SCORE) -> float:
    """Of attention weights, and of what is made of them, with scores up to the largest."""
    return of_sums(dtype, largest_score / 2)


SUMS = {dtype: of_sums(dtype) for dtype in (torch.float32, torch.float64)}
SUMS_32, SUMS_64 = SUMS.values()  # 1e-5, 2e-14

SHARP = {dtype: of_weights(dtype) for dtype in (torch.float32, torch.float64)}
SHARP_32, SHARP_64 = SHARP.values()  # 2e-4, 4e-13

HALF = {dtype: 6 * torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}
"""Of weights whose scores, up to 12, are summed in float32 and rounded once, one step up or down: 0.006, 0.05."""
