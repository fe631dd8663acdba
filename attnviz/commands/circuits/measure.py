"""Composition of every pair of heads, copying and succession of every head, from the weights alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.measures.composition import COMPOSITION_INPUTS, Layers
from attnviz.measures.successors import Succession
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress
from attnviz.run.contributions import without_gradients
from attnviz.wording import counted


@dataclass(frozen=True)
class HeadCopying:
    """What a head writes of the tokens that it reads; None without a language head."""

    id: HeadId
    copying: float | None  # -1 to 1, the sum of the eigenvalues of W_E W_V W_O W_U by the sum of their absolute values
    untrained: float | None  # that of a head of this shape with weights drawn at random
    successor: float | None = None  # 0-1, share of tokens of ordinal sequences of which it writes the successor
    shuffled: float | None = None  # its best score where the sequences are in random order


@dataclass(frozen=True)
class Pair:
    """Composition of two heads."""

    id: HeadId  # the later head, which reads
    writer: HeadId  # the earlier head
    kind: str  # one of :data:`COMPOSITION_INPUTS`
    score: float  # 0-1
    deviations: float  # how many standard deviations the squared score is above that of random rotations


@dataclass(frozen=True, repr=False, eq=False)
class Circuits(Result, OfHeads[HeadCopying]):
    """What :func:`circuits` measured."""

    command: ClassVar[str] = "circuits"

    checkpoint: Checkpoint
    heads: tuple[HeadCopying, ...]  # in the model's order, which is that of the matrices, too
    scores: dict[str, Tensor]  # by kind, [n, n], row = the head that reads, column = the earlier one; NaN elsewhere
    deviations: dict[str, Tensor]  # likewise, see :class:`Pair`
    baseline: float  # root of the mean squared score of two matrices with these singular values, turned at random
    no_copying: str  # reason why copying is None, or ''
    succession: Succession  # successor scores by sequence
    linearised: bool  # whether copying leaves out the activation of a masked-language head
    rotary: bool  # whether queries and keys are rotated by positions, which is left out

    def pairs(self, select: Sequence[str | HeadId] = ()) -> list[Pair]:
        """All pairs with a selected head on either side, the furthest above the baseline first.

        Raises UsageError for an unknown head.
        """
        chosen = {head.id for head in self.select(select)}
        ids = [head.id for head in self.heads]
        wanted = torch.tensor([id in chosen for id in ids])
        either, pairs = wanted[:, None] | wanted, list[Pair]()
        for kind in COMPOSITION_INPUTS:
            scores, above = self.scores[kind], self.deviations[kind]
            pairs += [
                Pair(ids[reader], ids[writer], kind, float(scores[reader, writer]), float(above[reader, writer]))
                for reader, writer in (either & ~scores.isnan()).nonzero().tolist()
            ]
        return sorted(pairs, key=lambda pair: -pair.deviations)

    @property
    def in_words(self) -> str:
        return f"of {self.checkpoint.short_name}: {counted(len(self.heads), 'head')}"


@checked
def circuits(
    model: Model | None = None, *, progress: Progress | None = None, **opening: Unpack[ModelOptions]
) -> Circuits:
    """Measure composition of every pair of heads and copying of every head, from the weights alone.

    Of an encoder-decoder the encoder alone is measured.

    >>> attnviz.circuits("tiny-gpt2").pairs(["L1H0"])[0]  # doctest: +SKIP
    """
    opened, _ = open_checkpoint(model, **opening)
    layers = Layers(opened.encoder)
    checkpoint = layers.checkpoint
    ids = select_heads((), checkpoint.kinds)
    none: Sequence[float | None] = [None] * len(ids)
    copying = untrained = successor = shuffled = none
    with without_gradients(checkpoint.device):
        squared, spread = layers.compositions(progress)
        if not layers.why_no_logits:
            copying, untrained = layers.copying(), layers.untrained_copying()
        following = layers.succession()
    if following.right:
        successor, shuffled = following.scores.flatten().tolist(), following.shuffled.flatten().tolist()
    heads = zip(ids, copying, untrained, successor, shuffled, strict=True)
    return Circuits(
        checkpoint=checkpoint,
        heads=tuple(HeadCopying(*head) for head in heads),
        scores=dict(zip(COMPOSITION_INPUTS, squared.sqrt(), strict=True)),
        deviations=dict(zip(COMPOSITION_INPUTS, (squared * layers.dimensions - 1) / spread, strict=True)),
        baseline=layers.dimensions**-0.5,
        no_copying=layers.why_no_logits,
        succession=following,
        linearised=layers.dense,
        rotary=layers.rotary,
    )
