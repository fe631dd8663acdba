"""Where heads show positional roles, sink, semantic and broad best, where at the deciles, and where not at all.

An instance is a content token. Its key is the one of greatest weight: among content for a role that is about attention
on content, among other words for ``semantic``, among all for ``sink`` and ``broad``. It is a hit where that key is one
that the role would look at; for ``broad``, where the token's attention is spread as the role asks for.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnviz.commands.profile.examples import ExampleTally, Shape
from attnviz.commands.profile.kept import FAINTEST, NONE, STEPS, Kept, Reading, packed, rounded_weights, score_codes
from attnviz.commands.profile.tallies import MeaningTally, StatisticsTally
from attnviz.corpora.batches import Batch
from attnviz.patterns.registry import allowed_units
from attnviz.patterns.verdicts import BROAD_SHARE

__all__ = ["PatternExamples"]

_OTHERS = ("sink", "semantic", "broad")


class _Looks(NamedTuple):
    """What heads do at each token for each role: key, weight, hit, [batch, n_roles, n_heads, n]."""

    keys: Tensor
    weights: Tensor
    hits: Tensor


class PatternExamples(ExampleTally):
    """Examples of roles that are judged token by token; it reads masks of the tallies that were begun before it."""

    NAME = "patterns"

    def __init__(self, shape: Shape, tokenizer: Any, statistics: StatisticsTally, meanings: MeaningTally) -> None:
        super().__init__(shape)
        self._statistics, self._meanings = statistics, meanings
        self._name = cache(tokenizer.convert_ids_to_tokens)
        self.roles = [*statistics.roles, *_OTHERS]

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - as other tallies
        """Take up the tokens of a batch, and where each role would look."""
        firsts = self._firsts(batch)
        self._masks = self._masks_of(batch)
        able = torch.tensor([first is not None for first in firsts])
        self._asked = self._masks.any(-1)
        self._asked[:, -1] = True  # of broad every token is asked
        self._asked &= (batch.content.cpu() & able[:, None])[:, None]
        self._firsts_of = torch.tensor([first or 0 for first in firsts])
        valid = batch.valid.cpu()
        seen = (valid[:, None, :] & allowed_units(valid.shape[1], self.shape.causal)).sum(-1).clamp(min=1)
        self._even = seen.log()
        for first, item in zip(firsts, batch.items, strict=True):
            if first is not None:
                empty = (place for place, (start, end) in enumerate(item.offsets) if start == end)
                names = {place: self._name(item.ids[place]) for place in empty}
                self.texts.of[first] = item.source.text, list(item.offsets), names
        self._draw()

    def _masks_of(self, batch: Batch) -> Tensor:
        """Where each role would look, boolean [batch, n_roles, n, n]; nowhere for broad."""
        valid, content = batch.valid.cpu(), batch.content.cpu()
        allowed = allowed_units(valid.shape[1], self.shape.causal)
        on_content = self._statistics.masks & (content[:, None, None, :] & allowed)
        sinks = (valid & ~content)[:, None, :] & allowed
        alike = self._meanings.alike.cpu()
        return torch.cat([on_content, torch.stack([sinks, alike, torch.zeros_like(alike)], 1)], 1)

    def _draw(self) -> None:
        """Draw tokens for the sample."""
        shape = self.shape
        kept = self._new(self.NAME, (len(self.roles), shape.n_layers, shape.n_heads))
        texts, queries = self._asked[:, -1].nonzero().T
        self._slots, new = kept.draw(self._firsts_of[texts] + queries)
        self._sampled = texts[new], queries[new]

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Look at one layer's patterns, [batch, n_heads, n, n]."""
        looks = self._look(pattern, batch)
        kept, asked = self.kept[self.NAME], self._asked[:, :, None]
        scores = rounded_weights(looks.weights)
        of_hits = scores.clone()
        of_hits[:, -1] = STEPS - of_hits[:, -1]  # the most even is the best
        n = pattern.shape[-1]
        turned = NONE - torch.arange(n, dtype=torch.int)  # of equal scores the first query
        best = torch.stack([
            (each << 14 | turned).masked_fill(~(which & asked), -1).amax(-1)
            for each, which in ((of_hits, looks.hits), (scores, ~looks.hits & (scores >= FAINTEST)))
        ])  # fmt: skip
        queries = (NONE - (best & NONE)).clamp(max=n - 1).long()  # [2, batch, n_roles, n_heads]
        codes = score_codes(best >> 14, self._firsts_of[:, None, None] + queries)
        keys, weights = (each.expand(2, *each.shape).gather(-1, queries[..., None])[..., 0] for each in looks[:2])
        weights = rounded_weights(weights)
        hit = torch.tensor([1, 0])[:, None, None, None].expand_as(keys)
        right = hit.bool() & (torch.arange(len(self.roles)) < len(self.roles) - 1)[:, None]
        readings = packed(hit, keys, weights, keys.masked_fill(~right, NONE), weights)
        at = (slice(None), layer)
        fresh = kept.offer(codes.movedim(1, -1), readings.movedim(1, -1), at)
        self._mend(kept, layer, fresh, queries, pattern.float().cpu())
        self._fill(kept, layer, looks, pattern.float().cpu())
        if layer == self.shape.n_layers - 1:
            self.texts.forget(self.kept.values())

    def _look(self, pattern: Tensor, batch: Batch) -> _Looks:
        content = batch.content[:, None, None, :]
        roles = len(self.roles) - len(_OTHERS)
        pairs = self._meanings.pairs[:, None].to(pattern.device)
        found = [pattern.masked_fill(~where, -1.0).max(-1) for where in (content, pairs)]
        (on_content, near), (alike, other), (all_of, any_key) = (*found, pattern.max(-1))
        weights, keys = (
            torch.cat([one[:, None].expand(-1, roles, -1, -1), torch.stack([three, two, three], 1)], 1).cpu()
            for one, two, three in ((on_content, alike, all_of), (near, other, any_key))
        )
        masks = self._masks[:, :, None].expand(-1, -1, pattern.shape[1], -1, -1)
        hits = masks.gather(-1, keys[..., None])[..., 0]
        hits[:, -1] = self._statistics.entropies.cpu() >= BROAD_SHARE * self._even[:, None]
        return _Looks(keys, weights, hits)

    def _mend(self, kept: Kept, layer: int, fresh: Tensor, queries: Tensor, pattern: Tensor) -> None:
        """Write into misses that are kept now the key where the role would have looked, the one of most weight."""
        role, head, slot = (fresh[1] >= 0).nonzero().T
        text = fresh[1][role, head, slot]
        query = queries[1, text, role, head]
        gold, weight = self._right(pattern[text, head, query], self._masks[text, role, query])
        place = kept.readings[1, :, layer]
        place[role, head, slot] = (place[role, head, slot] >> 28 << 28) | gold << 14 | weight

    def _fill(self, kept: Kept, layer: int, looks: _Looks, pattern: Tensor) -> None:
        """Write what the heads do at tokens that were drawn for the sample."""
        texts, queries = self._sampled
        if not len(texts):
            return
        masks = self._masks[texts, :, queries][:, :, None]  # [n, n_roles, 1, n_keys]
        gold, right = self._right(pattern[texts, :, queries][:, None], masks)
        keys, weights, hits = (each[texts, ..., queries] for each in looks)
        weights = rounded_weights(weights)
        right[:, -1] = weights[:, -1]  # of broad: deciles by the greatest weight
        asked = self._asked[texts, :, queries][..., None]
        readings = packed(hits & asked, keys.clamp(min=0), weights, gold, right.masked_fill(~asked, NONE))
        kept.sampled[:, layer, :, self._slots] = readings.movedim(0, -1)

    @staticmethod
    def _right(rows: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Under masks the key of greatest weight, and that weight, rounded; NONE and 0 where a mask is empty."""
        weight, key = rows.masked_fill(~masks, -1.0).max(-1)
        return key.masked_fill(weight < 0, NONE), rounded_weights(weight)

    def _ends(
        self,
        position: int,
        reading: Reading,
        direction: int,  # noqa: ARG002 - as others
        more: Mapping[int, Any],  # noqa: ARG002
    ) -> tuple[int, int, tuple[int, int] | None]:
        return position, reading.key, None if reading.gold == NONE else (position, reading.gold)

    def cell(self, role: str, direction: str | None) -> tuple[str, int] | None:  # noqa: ARG002
        """Where a role is kept."""
        return (self.NAME, self.roles.index(role)) if role in self.roles else None
