"""The logits of the whole model beside those that its head gives for its final states."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import SPAN
from attnviz.reference.attention import upcast
from attnviz.run.contributions import check_total
from attnviz.run.edit import running


def check_logits(checkpoint: Checkpoint, inputs: dict[str, Tensor], states: Tensor, positions: Sequence[int]) -> float:
    """Compare the logits that the whole model returns for one text with those of its head on recorded final states.

    ``inputs``: of the model, [1, n]; ``states``: [n_positions, d_model]; of a classifier at the one that it reads.
    Returns the largest difference as a share of the largest logit. VerificationError: the head alone is not what the
    model does.
    """
    whole, head = checkpoint.whole, checkpoint.prediction_head
    assert whole is not None
    assert head is not None
    keep = torch.tensor(positions, device=checkpoint.device)
    options: dict[str, Any] = {"use_cache": False, "logits_to_keep": keep}
    accepted = {name: value for name, value in options.items() if name in signature(whole.forward).parameters}
    with running(checkpoint):
        given, output = head(states), whole(**inputs, **accepted)
        of_span = checkpoint.class_head is not None and checkpoint.class_head.task == SPAN
        logits = (torch.stack(tuple(output[:2]), dim=-1) if of_span else output[0]).reshape(-1, *given.shape[1:])
    logits = logits if len(logits) == len(given) else logits[positions]  # all positions, where none can be asked for
    n_logits = given.shape[-1]

    def where(worst: int) -> str:
        return f"at position {positions[worst // n_logits]}, logit {worst % n_logits}"

    what = "the head of the model, on its final states, does not give the logits that the model returns"
    error, _ = check_total(checkpoint, upcast(given), upcast(logits), what, where)
    return error
