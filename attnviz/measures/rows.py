"""A statistic, declared once, and the chunks of rows of attention that it reads.

The rows are those of one text, or of several padded texts, one text after the other: all are [n_heads, n_rows, n_keys].
Heads may be those of several layers, which see the same keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import threshold

from attnviz.measures.patterns import CHOSEN, CHOSEN_OF_ROW, CHOSEN_OF_UNIFORM
from attnviz.reference.attention import nowhere, weighted_logs

# Over which queries a statistic is averaged; a mask's name stands for the queries of content with a key under it.
QUERIES = "queries"  # all that are measured, without padding
CONTENT = "content"  # those that are no sinks
ON_CONTENT = "on content"  # those of them with any attention on content
ATTENTION = "attention"  # those that are no sinks, weighted by their attention on content: a share of it

_ROUNDING = 1e-6


class RowPlan:
    """What the queries of a chunk of rows may attend to; made once, for the patterns of all layers.

    Attention under a mask is summed over a list of pairs, indices into the flattened chunk [n_rows, n_keys]; under that
    of a chosen pattern it is not.

    Args:
        device: of the patterns; other tensors may be elsewhere.
        queries: boolean [n_rows], those that are measured.
        non_sink: boolean [n_rows], those of them that are content.
        first: where the first of them stands in its text.
        n_texts: number of texts, with as many rows each.
        allowed: boolean [n_rows, n_keys], the keys that each may attend to.
        content: boolean [n_keys], or [n_rows, n_keys], keys of content.
        names: of the masks, which are those of statistics.
        masks: boolean [n_masks, n_rows, n_keys].
        along: of cross-attention, where keys [n_keys] and queries [n_rows] stand in content, 0 to 1.
        learned_sinks: whether rows may sum to less than 1.
        keep: whether there is memory to keep what patterns are multiplied by.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        queries: Tensor,
        non_sink: Tensor,
        first: int = 0,
        n_texts: int = 1,
        allowed: Tensor,
        content: Tensor,
        names: Sequence[str] = (),
        masks: Tensor | None = None,
        along: tuple[Tensor, Tensor] | None = None,
        learned_sinks: bool = False,
        keep: bool = True,
    ) -> None:
        self.first, self.n_texts = first, n_texts
        self.queries, self.non_sink = queries.to(device), non_sink.to(device)
        self.n_visible, self.names = allowed.sum(-1).to(device), tuple(names)
        self._content = content.to(device)
        self.along = None if along is None else (along[0].to(device), along[1].to(device))
        self.chosen: tuple[Tensor, Tensor] | None = None  # of the pattern CHOSEN the pairs, and how many each query has
        self.learned_sinks = learned_sinks
        self._keep = keep
        self._columns: Tensor | None = None
        if masks is None or not names:
            return
        pairs = allowed & non_sink[:, None] & content
        under = masks & pairs
        self.has_key = under.any(-1).to(device)  # boolean [n_masks, n_rows], whether a query has a key under the mask
        if CHOSEN in names:
            self.chosen = under[self.names.index(CHOSEN)].to(device), pairs.sum(-1).to(device)
        self.summed = [number for number, name in enumerate(names) if name != CHOSEN]
        row, key, mask = under[self.summed].permute(1, 2, 0).nonzero().to(device).T
        self.pairs = row * allowed.shape[1] + key  # those of all masks that are summed
        self.onto = mask * len(allowed) + row  # the mask and the row of each

    def columns(self, pattern: Tensor) -> Tensor:
        """What rows are multiplied by, [n_rows, n_columns, n_keys] in the dtype of the pattern.

        They are 1 for content, 1 for all other keys, the distance, and the distance of content; in cross-attention
        where keys of content stand; of the pattern CHOSEN the mask, and the share of content that it has. Products with
        few columns are fastest this way round.
        """
        known = self._columns
        if known is not None and known.dtype in (pattern.dtype, torch.float64):
            self._columns = known.to(pattern.dtype)
            return self._columns
        n_rows = len(self.queries) // self.n_texts
        positions = torch.arange(self.first, self.first + n_rows, device=pattern.device).repeat(self.n_texts)
        keys = torch.arange(pattern.shape[-1], device=pattern.device)
        far, content = (keys - positions[:, None]).abs().to(pattern), self._content.to(pattern)
        columns = [content.expand_as(far), (1 - content).expand_as(far), far, far * content]
        if self.along is not None:
            columns.append((self.along[0].to(pattern) * content).expand_as(far))
        if self.chosen is not None:
            of_mask, n = self.chosen
            share = of_mask.sum(-1).to(pattern) / n.clamp(min=1)
            columns += [of_mask.to(pattern), share[:, None].expand_as(far)]
        stacked = torch.stack(columns, 1)
        self._columns = stacked if self._keep else None
        return stacked


class AttentionRows:
    """Rows of attention, [n_heads, n_rows, n_keys] in float32 or wider, and sums over their keys, [n_heads, n_rows]."""

    def __init__(self, pattern: Tensor, plan: RowPlan) -> None:
        self.pattern, self.plan = pattern, plan
        self._columns = plan.columns(pattern)

    def _sums(self, weights: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        """Sums of weights [n_heads, n_rows, n_keys] times each of these columns, [n_heads, n_rows] each."""
        return torch.bmm(self._columns[:, first:last], weights.permute(1, 2, 0)).permute(1, 2, 0).unbind()

    @cached_property
    def linear(self) -> tuple[Tensor, ...]:
        """Attention on content, on sinks, the mean distance, that of content, and the mean place in the source."""
        return self._sums(self.pattern, 0, 4 if self.plan.along is None else 5)

    @property
    def to_content(self) -> Tensor:
        return self.linear[0]

    @cached_property
    def logs(self) -> tuple[Tensor, ...]:
        """Sums of A ln A over content, and over sinks."""
        return self._sums(weighted_logs(self.pattern), 0, 2)

    @cached_property
    def nowhere(self) -> Tensor:
        """What goes to learned sinks."""
        return nowhere(self.pattern)

    @cached_property
    def on_content(self) -> Tensor:
        """The weights on content, [n_heads, n_rows, n_keys], and 0 on sinks."""
        return self.pattern * self._columns[:, 0]

    @cached_property
    def under(self) -> dict[str, Tensor]:
        """Attention under each mask; the rows of sinks are not to be read."""
        plan, (n_heads, n_rows, _) = self.plan, self.pattern.shape
        sums = self.pattern.new_zeros(n_heads, n_rows * len(plan.summed))
        sums.index_add_(1, plan.onto, self.pattern.flatten(1).index_select(1, plan.pairs))
        of_masks = sums.view(n_heads, -1, n_rows).unbind(1)
        return dict(zip([plan.names[number] for number in plan.summed], of_masks, strict=True))

    @cached_property
    def chosen(self) -> tuple[Tensor, ...]:
        """The attention on the keys under the mask of CHOSEN that heads choose, and its expectation.

        A head chooses a key that gets at least :data:`CHOSEN_OF_UNIFORM` times what uniform attention would give it,
        and at least :data:`CHOSEN_OF_ROW`. Uniform attention chooses none, in texts of any length. The expectation is
        that where the weights of a row stay and its keys of content are shuffled.
        """
        of_one = CHOSEN_OF_ROW / CHOSEN_OF_UNIFORM
        scale = (self.plan.n_visible.to(self.pattern) * of_one).clamp(of_one, 1)  # so that one threshold serves all
        weights = threshold(self.on_content * scale[:, None], CHOSEN_OF_ROW * (1 - _ROUNDING), 0.0, inplace=True)
        return tuple(values / scale for values in self._sums(weights, 4, 6))

    def counted(self, over: str) -> Tensor:
        """Whether a row counts, boolean, broadcastable to [n_heads, n_rows]; ``over`` is QUERIES, CONTENT, …."""
        plan = self.plan
        if over == QUERIES:
            return plan.queries
        if over == ON_CONTENT:
            return plan.non_sink & (self.to_content > 0)
        return plan.has_key[plan.names.index(over)] if over in plan.names else plan.non_sink


@dataclass(frozen=True)
class Statistic:
    """A number of every head: the mean over queries of one value a row.

    In the words stand ``{unit}`` for token or word, ``{sinks}`` for the sinks of the text, and ``{window}`` and
    ``{far}`` for the distances that are local and long-range.
    """

    name: str  # its key in JSON, CSV and ``--map``
    title: str  # its name in maps and on the page
    meaning: str
    # from rows to [n_heads, n_rows]; rows that do not count may be anything. None of what is not measured row by row
    value: Callable[[AttentionRows], Tensor] | None = None
    over: str = QUERIES  # over which queries it is averaged
    unit: str = ""  # nats, or ``{unit}s``; empty for none
    bounded: bool = True  # whether it is from 0 to 1
    column: str = ""  # header of its column in tables; the table of heads on the terminal has those that have one
    needs: str = ""  # one of NEEDS, without which it is not measurable; empty for nothing
    source: str = ""  # paper that defined or named it


# What a text or its model must have.
ONE_TEXT = "one text"  # queries and keys are positions of the same text
TWO_TEXTS = "two texts"  # they are not (cross-attention), and both have two positions of content at least
SINKS = "sinks"
LEARNED_SINKS = "learned sinks"
NEEDS = ("", ONE_TEXT, TWO_TEXTS, SINKS, LEARNED_SINKS)
