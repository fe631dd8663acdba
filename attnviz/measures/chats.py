"""Attention between the roles of a corpus of chats: what `assistant` reads of `system`, and how much answers look back.

Each chat gives every head one number, as :mod:`attnviz.measures.spans` has it for one text; all messages of a role are
one span. Shares are of attention to content. Scores are means over the chats that have it, whatever their length.
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.inputs.chats import RenderedChat
from attnviz.inputs.prompt import Prompt, Span
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.measure import LayerRows, Measure, PatternRows, copy_to_host
from attnviz.measures.patterns import allowed_units
from attnviz.measures.spans import SpanLayout, SpanTally
from attnviz.measures.tallies import different_windows
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import uniform_pattern

ChatNumber = tuple[str, str, str]  # what is measured (SHARE, LAST or LOOKBACK), and the roles from which and to which

SHARE, LAST, LOOKBACK = "share", "last", "lookback"

_LOOKBACK: ChatNumber = LOOKBACK, "", ""


@dataclass(frozen=True)
class ChatScores:
    """One measure of every head over chats, beside that of uniform attention."""

    measure: str
    source: str  # role; '' of the lookback ratio
    target: str
    scores: HeadScores


class ChatTally(Measure):
    """Sums of each chat's shares between roles, and of its lookback ratio, by bootstrap sample."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._architecture = checkpoint.architecture
        self._windows, self._of_layer = different_windows(checkpoint.windows)
        self._layouts: list[SpanLayout]  # of the texts of the batch
        self._measures: list[ChatNumber]  # those that a chat of the batch may have
        self._having: Tensor  # boolean [batch, n_measures], those that it has: of some uniform attention

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Find the roles of a batch, and measure uniform attention."""
        super().begin(batch, weights)
        architecture = self._architecture
        self._layouts = [_layout(item, architecture.causal) for item in batch.items]
        roles = dict.fromkeys(span.name for layout in self._layouts for span in layout.spans)
        self._measures = [*product((SHARE, LAST), roles, roles), _LOOKBACK]
        of_windows = []
        for window in self._windows:
            allowed = allowed_units(batch.valid.shape[1], architecture.causal, window).to(batch.valid.device)
            of_all, of_content = (
                self._measured(uniform_pattern(keys[:, None] & allowed, architecture.learned_sinks)[:, None])
                for keys in (batch.valid, batch.non_sink)
            )
            of_windows.append(torch.cat([of_content[:, 0, :-1], of_all[:, 0, -1:]], 1))  # the lookback ratio is of all
        uniform = torch.stack(of_windows)
        self._having = (uniform > 0).any(0)
        self._count("n", torch.ones_like(uniform[:1]))
        self._count("uniform", uniform)

    def update(self, rows: PatternRows) -> None:
        """Count one layer's patterns."""
        self._keep("heads", self._measured(rows.in_float32))

    def _measured(self, pattern: Tensor) -> Tensor:
        """Every measure of each chat, [batch, n_heads, n_measures] on the host; 0 where it has none."""
        tallies = [SpanTally(layout) for layout in self._layouts]
        for text, tally in enumerate(tallies):
            n = tally.layout.n_tokens
            tally.update(LayerRows(0, pattern[text : text + 1, :, :n, :n]))
        copy_to_host(tallies)
        of_chats = []
        for tally in tallies:
            number = {span.name: index for index, span in enumerate(tally.layout.spans)}
            means = tally.means[0]
            shares = {SHARE: means["content"], LAST: means["last_content"]}
            missing = torch.zeros_like(means["lookback"])
            values = [
                shares[measure][:, number[source], number[target]] if {source, target} <= number.keys() else missing
                for measure, source, target in self._measures[:-1]
            ]
            of_chats.append(torch.stack([*values, means["lookback"]], -1).nan_to_num())
        return torch.stack(of_chats)

    def _count(self, name: str, values: Tensor) -> None:
        """Count values of each chat that has the measure, [n_layers or n_windows, batch, …, n_measures]."""
        for number, measure in enumerate(self._measures):
            having = self._having[:, number]
            if having.any():
                sums = torch.einsum("rb,lb...->rl...", self._weights * having, values[..., number].double())
                self._sum((*measure, name), sums)

    def results(self) -> list[ChatScores]:
        """Every measure, those of the most chats first, then by roles."""
        scores = list[ChatScores]()
        measures: list[ChatNumber] = [key[:3] for key in self._counts if key[3] == "n"]
        for measure in measures:
            n = self._counts[*measure, "n"][..., None]
            values = (self._counts[*measure, "heads"] / n)[:, None]
            uniform = (self._counts[*measure, "uniform"][:, self._of_layer, None] / n)[:, None]
            chats = int(n[0])
            scores.append(ChatScores(*measure, estimated(values, {"uniform attention": uniform}, chats, chats)))
        return sorted(scores, key=lambda row: (-row.scores.texts, row.measure != SHARE, row.source, row.target))


def _layout(item: Prompt, causal: bool) -> SpanLayout:
    """The roles of a chat, each with all of its messages; no spans for any other text."""
    chat, tokens = item.source.chat, dict[str, tuple[int, ...]]()
    roles = dict(zip(chat.places, chat.roles, strict=True)) if isinstance(chat, RenderedChat) else {}
    for message in item.messages:
        role = roles[message.name]
        tokens[role] = (*tokens.get(role, ()), *message.tokens)
    spans = tuple(Span(role, members) for role, members in tokens.items())
    return SpanLayout(spans, len(item), item.first_new if causal else None, item.sinks)
