"""How far a correct recomputation may be from the model, by number format."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """How far the reference may be from the model before it counts as wrong.

    Attributes:
        pattern: largest absolute difference of an attention weight (weights are at most 1).
        output: largest absolute difference of the output, as a share of the layer's largest output.
        reason: why a correct reference stays below.
        row: largest difference of a weight, as a share of the largest weight of its query; None where ``pattern`` is
            so small that this says no more.
        scale: smallest error of a layer's scale that is looked for, see :mod:`attnviz.attention.coarse`; None likewise.
    """

    pattern: float
    output: float
    reason: str
    row: float | None = None
    scale: float = 0.0


TOLERANCES = {
    torch.float64: Tolerance(1e-12, 1e-12, "float64 rounds at 2e-16; a correct head differs by about 1e-14"),
    torch.float32: Tolerance(1e-4, 1e-4, "float32 rounds at 1e-7; a correct head differs by about 1e-6"),
    torch.float16: Tolerance(
        5e-2, 2e-2, "float16 rounds scores of size 100 by 0.03, which moves a weight by up to 0.015", 6e-2, 4e-3
    ),
    torch.bfloat16: Tolerance(
        1e-1, 5e-2, "bfloat16 rounds scores of size 100 by 0.25, which moves a weight by up to 0.12", 3e-1, 8e-3
    ),
}
"""By number format. Wrong variants of attention (no scale, swapped Q and K, …) move weights by 0.2 to 1."""

FLOAT32_STEPS = Tolerance(
    1e-5,
    1e-5,
    "cos, sin, norms and softmax are float32 in these models whatever the number format, which rounds at 1e-7",
)
"""In float64, of models that compute some steps in float32 (:attr:`Architecture.float32_steps`)."""


def tolerance_of(dtype: torch.dtype, float32_steps: bool) -> Tolerance:
    """The tolerance for a model in a number format that computes some of its steps in float32, or none."""
    return FLOAT32_STEPS if float32_steps and dtype == torch.float64 else TOLERANCES[dtype]
