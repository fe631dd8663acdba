"""Refuses numbers of a model that are not finite."""

from torch import Tensor

from attnviz.errors import VerificationError
from attnviz.models.weights import all_finite


def refuse_not_finite(values: Tensor, what: str) -> None:
    """Raise VerificationError if values are not finite; weights were checked when the model was loaded."""
    if not all_finite(values):
        raise not_finite(what, str(values.dtype).removeprefix("torch."))


def not_finite(what: str, dtype: str) -> VerificationError:
    """The error about values of the model that are not finite."""
    return VerificationError(
        f"The model's own {what} has values that are not finite in {dtype}; a wider --dtype may help. Nothing was "
        "written."
    )
