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

from attnviz.commands.profile.examples import Ends, ExampleTally
from attnviz.commands.profile.kept import FAINTEST, NONE, STEPS, Kept, Reading, packed, rounded_weights, score_codes
from attnviz.commands.profile.tallies import MeaningTally, StatisticsTally
from attnviz.corpora.batches import Batch
from attnviz.corpora.runs import RunSettings
from attnviz.patterns.registry import allowed_units
from attnviz.patterns.rules import BROAD_SHARE

_OTHERS = ("sink", "semantic", "broad")


class _Looks(NamedTuple):
    """What heads do at each token, for roles that look at one key: it and its weight, rounded, [batch, n_heads, n].

    Numbers with all bits set say of each role where a token is ``asked``, [batch, 1, n, n_roles], and where it is one
    of ``hits`` besides, [batch, n_heads, n, n_roles].
    """

    keys: Tensor
    weights: Tensor
    asked: Tensor
    hits: Tensor
    even: bool = False
    """Whether the least weight is the best hit, and no key is right."""


class PatternExamples(ExampleTally):
    """Examples of roles that are judged token by token; it reads masks of the tallies that were begun before it."""

    NAME = "patterns"

    def __init__(self, settings: RunSettings, n: int, statistics: StatisticsTally, meanings: MeaningTally) -> None:
        super().__init__(settings, n)
        self._statistics, self._meanings = statistics, meanings
        self._name = cache(settings.checkpoint.tokenizer.convert_ids_to_tokens)
        self.roles = [*statistics.roles, *_OTHERS]

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - as other tallies
        """Take up the tokens of a batch, and where each role would look."""
        firsts = self._firsts(batch)
        valid, content = batch.valid.cpu(), batch.content.cpu()
        allowed = allowed_units(valid.shape[1], self.causal)
        sinks, alike = (valid & ~content)[:, None, :] & allowed, self._meanings.alike.cpu()
        positional = self._statistics.masks & allowed
        others = torch.stack([sinks, alike, torch.zeros_like(alike)], 1)  # nowhere for broad
        tables = (positional, others[:, :1], others[:, 1:2])  # rows by text, query, key; one text may stand for all
        self._right_at = [_bits(each).movedim(1, -1).contiguous().flatten(0, 2) for each in tables]
        self._pairs, self._off_content = self._meanings.pairs.cpu(), _penalty(content)[:, None, None]
        self._masks = torch.cat([positional & content[:, None, None, :], others], 1)
        asked = self._masks.any(-1)
        asked[:, -1] = True  # of broad every token is asked
        self._asked = asked & (content & (firsts >= 0)[:, None])[:, None]
        n = len(self.roles) - len(_OTHERS)
        bits = _bits(self._asked).mT[:, None].tensor_split([n, n + 1, n + 2], -1)
        self._asked_of = [each.contiguous() for each in bits]
        self._firsts_of = firsts.clamp(min=0)
        seen = (valid[:, None, :] & allowed).sum(-1).clamp(min=1)
        self._even = seen.log()
        for first, item in zip(firsts.tolist(), batch.items, strict=True):
            if first >= 0:
                empty = (place for place, (start, end) in enumerate(item.offsets) if start == end)
                names = {place: self._name(item.ids[place]) for place in empty}
                self.texts.of[first] = item.source.text, list(item.offsets), names
        self._draw()

    def _draw(self) -> None:
        """Draw tokens for the sample."""
        kept = self._new(self.NAME, (len(self.roles), *self.shape))
        texts, queries = self._asked[:, -1].nonzero().T
        self._slots, new = kept.draw(self._firsts_of[texts] + queries)
        self._sampled = texts[new], queries[new]

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Look at one layer's patterns, [batch, n_heads, n, n]."""
        kept, pattern = self.kept[self.NAME], pattern.float().cpu()
        looks = self._look(pattern)
        codes, readings, queries = (
            torch.cat(some, -1).permute(0, 3, 2, 1) for some in zip(*map(self._clearest, looks), strict=True)
        )
        fresh = kept.offer(codes, readings, (slice(None), layer))
        self._mend(kept, layer, fresh, queries, pattern)
        self._fill(kept, layer, looks, pattern)
        if layer == self.shape[0] - 1:
            self.texts.forget(self.kept.values())

    def _look(self, pattern: Tensor) -> list[_Looks]:
        """For the roles about content together, then for each of the others."""
        on_content = pattern + self._off_content
        near, anywhere = on_content.max(-1), self._statistics.largest
        found, looks, n = [near, anywhere, self._at_others(on_content, *near)], [], pattern.shape[-1]
        for (weights, keys), right, asked in zip(found, self._right_at, self._asked_of, strict=False):
            cells = torch.arange(len(right) // (n * n))[:, None, None] * n * n + torch.arange(n) * n + keys.cpu()
            hits = right.index_select(0, cells.flatten()).view(*cells.shape, -1) & asked
            looks.append(_Looks(keys.cpu(), rounded_weights(weights.cpu()), asked, hits))
        even = self._statistics.entropies.cpu() >= BROAD_SHARE * self._even[:, None]
        asked = self._asked_of[-1]
        return [*looks, _Looks(*looks[1][:2], asked, _bits(even)[..., None] & asked, True)]

    def _at_others(self, on_content: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token of content the key of greatest weight among other words, from that among all content."""
        is_pair = self._pairs[:, None].expand(on_content.shape).gather(-1, keys[..., None])[..., 0]
        text, head, query = (~is_pair & self._asked[:, -2, None]).nonzero().T
        of_rows = (on_content[text, head, query] + _penalty(self._pairs[text, query])).max(-1)
        weights, keys = weights.clone(), keys.clone()
        weights[text, head, query], keys[text, head, query] = of_rows
        return weights, keys

    def _clearest(self, look: _Looks) -> tuple[Tensor, Tensor, Tensor]:
        """Of each text the best hit and the clearest miss: codes, readings, queries, [2, batch, n_heads, n_roles]."""
        keys, weights, asked, hits, even = look
        n = keys.shape[-1]
        turned = NONE - torch.arange(n, dtype=torch.int)  # of equal scores the first query
        ranked, missed = ((each << 14 | turned)[..., None] for each in (STEPS - weights if even else weights, weights))
        best = torch.stack([(hits & ranked).amax(2), ((asked ^ hits) & missed).amax(2)])
        queries = (NONE - (best & NONE)).clamp(max=n - 1).long()
        least = torch.tensor([0, FAINTEST])[:, None, None, None]
        scores = (best >> 14).masked_fill((best == 0) | (best >> 14 < least), -1)
        codes = score_codes(scores, self._firsts_of[:, None, None] + queries)
        key, weight = (each.expand(2, *each.shape).gather(-1, queries) for each in (keys, weights))
        hit = torch.tensor([1, 0])[:, None, None, None].expand_as(key)
        right = torch.full_like(key, NONE) if even else key.masked_fill(hit == 0, NONE)
        return codes, packed(hit, key, weight, right, weight), queries

    def _mend(self, kept: Kept, layer: int, fresh: Tensor, queries: Tensor, pattern: Tensor) -> None:
        """Write into misses that are kept now the key where the role would have looked, the one of most weight."""
        role, head, slot = (fresh[1] >= 0).nonzero().T
        text = fresh[1][role, head, slot]
        query = queries[1, role, head, text]
        gold, weight = self._right(pattern[text, head, query], self._masks[text, role, query])
        place = kept.readings[1, :, layer]
        place[role, head, slot] = (place[role, head, slot] >> 28 << 28) | gold << 14 | weight

    def _fill(self, kept: Kept, layer: int, looks: list[_Looks], pattern: Tensor) -> None:
        """Write what the heads do at tokens that were drawn for the sample."""
        texts, queries = self._sampled
        if not len(texts):
            return
        masks = self._masks[texts, :, queries][:, :, None]  # [n, n_roles, 1, n_keys]
        gold, right = self._right(pattern[texts, :, queries][:, None], masks)
        found = []
        for look in looks:
            hits = look.hits[texts, :, queries].mT  # [n, n_roles, n_heads]
            found.append((*(each[texts, :, queries][:, None].expand(hits.shape) for each in look[:2]), hits))
        keys, weights, hits = (torch.cat(some, 1) for some in zip(*found, strict=True))
        right[:, -1] = weights[:, -1]  # of broad: deciles by the greatest weight
        asked = self._asked[texts, :, queries][..., None]
        readings = packed(hits != 0, keys.clamp(min=0), weights, gold, right.masked_fill(~asked, NONE))
        kept.sampled[self._slots, :, layer] = readings

    @staticmethod
    def _right(rows: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Under masks the key of greatest weight, and that weight, rounded; NONE and 0 where a mask is empty."""
        weight, key = (rows + _penalty(masks)).max(-1)
        return key.masked_fill(weight < 0, NONE), rounded_weights(weight)

    def _ends(self, position: int, reading: Reading, direction: int, more: Mapping[int, Any]) -> Ends:  # noqa: ARG002
        return position, reading.key, None if reading.gold == NONE else (position, reading.gold)

    def cell(self, role: str, direction: str | None) -> tuple[str, int] | None:  # noqa: ARG002
        """Where a role is kept."""
        return (self.NAME, self.roles.index(role)) if role in self.roles else None


def _bits(where: Tensor) -> Tensor:
    """Numbers with all bits set where this is so, 0 elsewhere."""
    return -where.int()


def _penalty(where: Tensor) -> Tensor:
    """What makes weights of other keys negative."""
    return torch.where(where, 0.0, -2.0)
