"""Dropout as a yardstick: how far a model's attention moves by the noise that it was trained with.

Dropout of hidden states alone, as the model's own ``nn.Dropout`` modules do it in training; attention weights are not
dropped, so that each row still sums to 1. What is dropped of a text depends on the seed and on the text's number, not
on the batch that it is in.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.corpora.batches import Batch, named_generator
from attnviz.model.checkpoint import Checkpoint


@contextmanager
def dropping_out(checkpoint: Checkpoint, batch: Batch, seed: int, draw: int) -> Iterator[set[float]]:
    """While the block runs, the model drops parts of its hidden states, and is in eval mode all the same.

    Args:
        checkpoint: the model.
        batch: the texts that it will read.
        seed: of all draws.
        draw: which one of them.

    Yields:
        the probabilities of what was dropped so far; empty after a pass where the model drops nothing.
    """
    dropped: set[float] = set()
    generators = [named_generator(f"dropout:{seed}:{draw}:{item.source.number}") for item in batch.items]
    lengths = [len(item) for item in batch.items]

    def drop(module: nn.Dropout, _: tuple[Any, ...], output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != batch.valid.shape:
            return None
        dropped.add(module.p)
        kept = torch.zeros(output.shape)
        for row, (length, generator) in enumerate(zip(lengths, generators, strict=True)):
            kept[row, :length] = (torch.rand(length, output.shape[2], generator=generator) >= module.p).float()
        return output * (kept / (1 - module.p)).to(output)

    with ExitStack() as stack:
        for module in checkpoint.model.modules():
            if isinstance(module, nn.Dropout) and 0 < module.p < 1:
                stack.callback(module.register_forward_hook(drop).remove)
        yield dropped
