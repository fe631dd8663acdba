"""Dropout as the noise level of a comparison."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from attnviz.commands.compare.differences import mean_differences
from attnviz.commands.heads.analysis import Analysis
from attnviz.measures.bootstrap import named_generator
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.tokens import UnitRows
from attnviz.trace.recorder import PatternsAlone, at_site, record_attention

_MOST_PAIRS, _FEWER_FROM = 4, 512
"""Pairs of passes over one text, and tokens from which there is one pair: on few tokens a single one varies much."""

_Visit = Callable[[int, int, Tensor, Tensor], None]
"""Takes a layer, its first query, and the rows from there on in both passes, [n_texts, n_heads, rows, n_keys] each."""


@contextmanager
def dropping_out(checkpoint: Checkpoint, valid: Tensor, names: Sequence[str]) -> Iterator[set[float]]:
    """Turn dropout of hidden states on inside the block, though the model is in eval mode.

    It goes by the model's own ``nn.Dropout`` modules. Attention weights are not dropped, so that rows sum to 1.
    The mask of a text depends on its name alone, not on the batch.

    Args:
        checkpoint: the model.
        valid: boolean [n_texts, n], False for padding at the end.
        names: of the texts.

    Yields:
        the dropout probabilities seen so far; empty after a pass if the model has no dropout.
    """
    dropped: set[float] = set()
    generators, lengths = [named_generator(name) for name in names], valid.sum(1).tolist()

    def drop(module: nn.Dropout, output: Tensor) -> Tensor | None:
        if output.dim() != 3 or output.shape[:2] != valid.shape:
            return None
        dropped.add(module.p)
        kept = torch.zeros(output.shape)
        for row, (length, generator) in enumerate(zip(lengths, generators, strict=True)):
            kept[row, :length] = (torch.rand(length, output.shape[2], generator=generator) >= module.p).float()
        return output * (kept / (1 - module.p)).to(output)

    with ExitStack() as stack:
        for module in _dropouts(checkpoint):
            stack.enter_context(at_site(module, "output", partial(drop, module)))
        yield dropped


def _dropouts(checkpoint: Checkpoint) -> list[nn.Dropout]:
    return [each for each in checkpoint.model.modules() if isinstance(each, nn.Dropout) and 0 < each.p < 1]


@dataclass(frozen=True)
class _BothPasses(PatternsAlone):
    both: _Visit = lambda *_: None

    def rows(self, layer: int, first: int, own: Tensor) -> None:
        """Pass on a block of a batch with every text twice."""
        self.both(layer, first, *own.chunk(2))


def pass_twice(
    checkpoint: Checkpoint, inputs: dict[str, Tensor], valid: Tensor, names: Sequence[str], visit: _Visit,
    memory: float = torch.inf,
) -> float:  # fmt: skip
    """Run texts twice with dropout, in one batch, and ``visit`` each layer with its patterns in both passes.

    Args:
        checkpoint: the model.
        inputs: what its forward takes, [n_texts, n] each.
        valid: boolean [n_texts, n], False for padding at the end.
        names: of the texts, for their masks, with ``{}`` for the pass.
        visit: see :data:`_Visit`.
        memory: of a block of rows in bytes; by default a block is a layer.

    Returns:
        the largest probability of dropout of any module; 0 without dropout, where ``visit`` may not be called.
    """
    if not _dropouts(checkpoint):
        return 0.0
    named = [name.format(number) for number in (0, 1) for name in names]
    twice = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
    with dropping_out(checkpoint, torch.cat([valid, valid]), named) as dropped:
        record_attention(checkpoint, twice, _BothPasses(both=visit), memory)
    return max(dropped, default=0.0)


def noise_on_text(analysis: Analysis) -> tuple[float, dict[HeadId, float]]:
    """The distance of every head between two passes over an analysed text with dropout.

    It is the mean of :data:`_MOST_PAIRS` pairs of passes, of fewer over a long text.

    Returns:
        the largest probability of dropout of any module, and the distances in root nats; 0 and none without dropout.
    """
    checkpoint, n = analysis.checkpoint, len(analysis.tokens)
    pairs = max(1, min(_MOST_PAIRS, _FEWER_FROM // n))
    inputs = {
        name: tensor.expand(pairs, -1) for name, tensor in analysis.tokens.model_inputs(checkpoint.device).items()
    }
    wanted, merging = analysis.context.query_positions, dict[int, UnitRows]()
    divergences = {layer: torch.zeros(pairs, checkpoint.n_heads_of(layer)).double() for layer in checkpoint.layers}

    def add(layer: int, first: int, one: Tensor, other: Tensor) -> None:
        if layer not in merging:
            context = analysis.context_of(layer)
            merging[layer] = UnitRows(context.units.members, context.keys.members, n, n)
        unit, merged = merging[layer].add(first, torch.cat([one, other]).float())
        rows = [at - unit for at in wanted if unit <= at < unit + merged.shape[-2]]
        if rows:
            halves = merged[..., rows, :].chunk(2)
            mean, _ = mean_differences([(0, halves[0], halves[1])], torch.ones(pairs, len(rows), dtype=torch.bool))
            divergences[layer] += mean * len(rows) / len(wanted)

    valid = torch.ones(pairs, n, dtype=torch.bool)
    dropped = pass_twice(
        checkpoint, inputs, valid, [f"dropout:0:{{}}:{pair}" for pair in range(pairs)], add, analysis.attention.memory
    )
    distances = {layer: sums.sqrt().mean(0).tolist() for layer, sums in divergences.items()} if dropped else {}
    return dropped, {HeadId(layer, head): each for layer, row in distances.items() for head, each in enumerate(row)}
