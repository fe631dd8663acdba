"""Dropout as the noise level of a comparison."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from attnviz.measures.bootstrap import named_generator
from attnviz.models.checkpoint import Checkpoint
from attnviz.texts.batches import Batch
from attnviz.trace.recorder import at_site


@contextmanager
def dropping_out(checkpoint: Checkpoint, batch: Batch, seed: int, draw: int) -> Iterator[set[float]]:
    """Turn dropout of hidden states on inside the block, though the model is in eval mode.

    It goes by the model's own ``nn.Dropout`` modules. Attention weights are not dropped, so that rows sum to 1.
    The mask of a text depends on the seed, the draw and the text's number, not on the batch.

    Yields:
        the dropout probabilities seen so far; empty after a pass if the model has no dropout.
    """
    dropped: set[float] = set()
    generators = [named_generator(f"dropout:{seed}:{draw}:{item.source.number}") for item in batch.items]
    lengths = [len(item) for item in batch.items]

    def drop(module: nn.Dropout, output: Tensor) -> Tensor | None:
        if output.dim() != 3 or output.shape[:2] != batch.valid.shape:
            return None
        dropped.add(module.p)
        kept = torch.zeros(output.shape)
        for row, (length, generator) in enumerate(zip(lengths, generators, strict=True)):
            kept[row, :length] = (torch.rand(length, output.shape[2], generator=generator) >= module.p).float()
        return output * (kept / (1 - module.p)).to(output)

    with ExitStack() as stack:
        for module in checkpoint.model.modules():
            if isinstance(module, nn.Dropout) and 0 < module.p < 1:
                stack.enter_context(at_site(module, "output", partial(drop, module)))
        yield dropped
