"""Attention between the roles of a corpus of chats: what `assistant` reads of `system`, and how much answers look back.

Each chat gives every head one number, as :mod:`attnviz.measures.spans` has it for one text; all messages of a role are
one span. Shares are of attention to content. Scores are means over the chats that have it, whatever their length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.inputs.spans import Span
from attnviz.language.syntax import overlapping
from attnviz.measures.bootstrap import REPLICATES
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.patterns import allowed_units
from attnviz.measures.spans import SpanLayout, SpanTally
from attnviz.measures.sums import SumTally, copy_to_host
from attnviz.measures.tallies import different_windows
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import uniform_pattern

Measure = tuple[str, str, str]  # what is measured (SHARE, LAST or LOOKBACK), and the roles from which and to which

SHARE, LAST, LOOKBACK = "share", "last", "lookback"

_LOOKBACK: Measure = LOOKBACK, "", ""


@dataclass(frozen=True)
class ChatScores:
    """One measure of every head over chats, beside that of uniform attention."""

    measure: str
    source: str  # role; '' of the lookback ratio
    target: str
    scores: HeadScores


class ChatTally(SumTally):
    """Sums of each chat's shares between roles, and of its lookback ratio, by bootstrap sample."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._architecture = checkpoint.architecture
        self._windows, self._of_layer = different_windows(checkpoint.windows)
        self._shape = 1 + REPLICATES, checkpoint.n_layers, checkpoint.n_heads
        self._layouts = dict[int, SpanLayout]()
        self._having: dict[Measure, list[int]] = {}

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Find the roles of a batch, and measure uniform attention."""
        architecture = self._architecture
        super().begin(batch, weights)
        self._layouts = {}
        for text, item in enumerate(batch.items):
            chat = item.source.chat
            if chat is None:
                continue
            tokens = dict[str, tuple[int, ...]]()
            messages = overlapping(item.offsets, list(chat.messages.values()))
            for role, members in zip(chat.roles, messages, strict=True):
                tokens[role] = (*tokens.get(role, ()), *members)
            spans = tuple(Span(role, members) for role, members in tokens.items() if members)
            first_new = messages[-1][0] if chat.answered and architecture.causal and messages[-1] else None
            sinks = frozenset(position for position, is_sink in enumerate(item.sink) if is_sink)
            self._layouts[text] = SpanLayout(spans, len(item), first_new, sinks)
        of_windows = []
        for window in self._windows:
            allowed = allowed_units(batch.valid.shape[1], architecture.causal, window).to(batch.valid.device)
            of_all, of_content = (
                self._measured(uniform_pattern(keys[:, None] & allowed, architecture.learned_sinks)[:, None])
                for keys in (batch.valid, batch.non_sink)
            )
            of_windows.append({text: of_content[text] | {_LOOKBACK: of_all[text][_LOOKBACK]} for text in of_all})
        self._having = {}
        for text in of_windows[0]:
            for measure in of_windows[0][text]:
                if any(float(values[text][measure]) > 0 for values in of_windows):
                    self._having.setdefault(measure, []).append(text)
        for measure, texts in self._having.items():
            self._sum((*measure, "n"), self._weights[:, texts].sum(1))
            uniform = torch.stack([self._summed(measure, texts, values) for values in of_windows], 1)
            self._sum((*measure, "uniform"), uniform)
            if (*measure, "heads") not in self._counts:
                self._counts[*measure, "heads"] = torch.zeros(self._shape, dtype=torch.float64)

    def add(self, layer: int, pattern: Tensor) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        values = self._measured(pattern)
        for measure, texts in self._having.items():
            self._counts[*measure, "heads"][:, layer] += self._summed(measure, texts, values)

    def _measured(self, pattern: Tensor) -> dict[int, dict[Measure, Tensor]]:
        """Every measure of each chat, [n_heads], by its number in the batch; NaN where it has none."""
        tallies = {text: SpanTally(layout) for text, layout in self._layouts.items()}
        for text, tally in tallies.items():
            n = tally.layout.n_tokens
            tally.add(0, pattern[text, :, :n, :n])
        copy_to_host(list(tallies.values()))
        measured = dict[int, dict[Measure, Tensor]]()
        for text, tally in tallies.items():
            names = [span.name for span in tally.layout.spans]
            values = dict[Measure, Tensor]()
            for from_, source in enumerate(names):
                for to, target in enumerate(names):
                    values[SHARE, source, target] = tally.means["content"][:, from_, to]
                    values[LAST, source, target] = tally.means["last_content"][:, from_, to]
            measured[text] = values | {_LOOKBACK: tally.means["lookback"]}
        return measured

    def _summed(self, measure: Measure, texts: list[int], values: dict[int, dict[Measure, Tensor]]) -> Tensor:
        return self._weights[:, texts] @ torch.stack([values[text][measure] for text in texts]).nan_to_num()

    def results(self) -> list[ChatScores]:
        """Every measure, those of the most chats first, then by roles."""
        scores = list[ChatScores]()
        measures: list[Measure] = [key[:3] for key in self._counts if key[3] == "n"]
        for measure in measures:
            n = self._counts[*measure, "n"][:, None, None]
            values = (self._counts[*measure, "heads"] / n)[:, None]
            uniform = (self._counts[*measure, "uniform"][:, self._of_layer] / n)[:, None]
            chats = int(n[0])
            scores.append(ChatScores(*measure, estimated(values, {"uniform attention": uniform}, chats, chats)))
        return sorted(scores, key=lambda row: (-row.scores.texts, row.measure != SHARE, row.source, row.target))
