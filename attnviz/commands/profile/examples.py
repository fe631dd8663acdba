"""Example sentences of roles: the clearest hits, and the clearest misses; and texts from across the distribution.

Once the roles are judged, a random sample of the texts is read a second time, for the roles that get examples. An
instance of a role is a word of a relation, a pronoun, or a content token. It is a hit where the head attends most to a
key that is right, and a miss where it attends most to another; of ``broad`` it is a hit where the token's attention is
spread as the role asks for. Of copying the keys are right whose tokens the head raises, of ``inactive`` all keys of a
token at which it is quiet. Hits are ranked by their weight (of ``broad`` the least first), misses by that of the wrong
key, one a text each.

Texts across the whole distribution of what heads attend to, not the clearest ones, are a random sample, by deciles.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter

import torch
from torch import Tensor

from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.inputs.batches import Batch
from attnviz.inputs.prompt import Prompt
from attnviz.judge.roles import ENOUGH_INSTANCES, Role
from attnviz.judge.rules import BROAD_SHARE, MARGIN
from attnviz.language.syntax import DIRECTIONS
from attnviz.measures.names import NAME_DIRECTIONS
from attnviz.measures.patterns import INACTIVE, RARE_WORD, SINK, WRITTEN, allowed_units
from attnviz.measures.relations import RelatedWords, Spans, SpansOfTexts
from attnviz.models.head_ids import HeadId
from attnviz.profiles.examples import Example, RoleExamples, Unit
from attnviz.profiles.parts import SYNTACTIC
from attnviz.reference.attention import entropy
from attnviz.run.corpus import SampledAttention

SAMPLED_TEXTS = 500  # most texts of each corpus searched for examples: as many as an untrained copy is measured on

# Weights are rounded to four decimals, since those of two batches of different length differ by rounding.
_STEPS = 10_000

_FAINTEST = _STEPS // 100  # the least weight of a miss
_SPARE = 4  # further examples kept, since some turn out to be duplicates


def find_examples(run: CorpusRun, roles: Sequence[Role], n: int) -> tuple[RoleExamples, ...]:
    """Find ``n`` hits, and misses, of the roles that each head has, and of its best relation."""
    best: dict[HeadId, Role] = {}
    for role in roles:
        if role.role.startswith(SYNTACTIC) and role.n >= ENOUGH_INSTANCES:
            best[role.id] = max(best.get(role.id, role), role, key=attrgetter("margin"))
    shown = [role for role in roles if n and (role.holds or role is best.get(role.id))]
    shown.sort(key=attrgetter("id"))
    loop, search = run.loop, _Search(run, shown, n)
    for number, corpus in enumerate(loop.corpora):
        if any((role.role == "coreference") == (corpus.kind == "gap") for role in shown):
            sample = loop.sample(number, SAMPLED_TEXTS)
            texts = filter(None, map(run.prepared, sample))
            loop.over(texts, partial(search.look, number), f"{corpus.path.name}, examples", len(sample))
    return search.examples()


class TopExamples:
    """The ``n`` examples of the highest scores; ties go to the first texts."""

    def __init__(self, n: int) -> None:
        self._n, self._kept = n, list[tuple[int, int, int, int, Example]]()

    @property
    def floor(self) -> int:
        return -self._kept[-1][0] if len(self._kept) == self._n else 0

    def offer(self, score: int, key: tuple[int, int, int], example: Example) -> None:
        """Keep an example if it is one of the best; ``key``, unique: corpus, text, position."""
        insort(self._kept, (-score, *key, example))
        del self._kept[self._n :]

    def different(self, n: int) -> tuple[Example, ...]:
        """The best ``n`` with distinct texts and pairs."""
        first: dict[object, Example] = {}
        for *_, example in self._kept:
            first.setdefault((example.text, example.query, example.key), example)
        return tuple(first.values())[:n]


@dataclass(frozen=True)
class _Instances:
    """Instances of a role in a batch: [n] texts, queries and positions, the latter unique within a text."""

    texts: Tensor
    queries: Tensor
    positions: Tensor
    keys: Tensor  # boolean [n, n_keys], as are the right ones
    right: Tensor
    spans: bool = False
    reverse: bool = False  # keys attend to the query
    spread: bool = False  # a hit is attention spread over all keys

    def seen(self, weights: Tensor, heads: Sequence[int], shown: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Evaluate heads from weights, [batch, n_heads, n, n]; ``shown`` are right keys that heads do not share.

        Returns scores as hit and miss, [n, n_heads, 2], one of each a text, else -1; and [n, n_heads, 5]: whether it is
        a hit, the key and its weight, the right key and its weight, -1 without one. Weights are in ten-thousandths.
        """
        weights = weights.mT if self.reverse else weights
        rows = weights[self.texts[:, None], torch.tensor(heads), self.queries[:, None]]  # [n, n_heads, n_keys]
        weights = (rows * _STEPS).round().long()
        keys, right = self.keys[:, None], self.right[:, None]
        if shown is not None:
            right = keys & shown[self.texts[:, None], torch.tensor(heads), self.queries[:, None]]
        gold_weight, gold = weights.masked_fill(~right, -1).max(-1)
        weight, key = weights.masked_fill(~(keys & ~right), -1).max(-1)
        if self.spread:
            hits = entropy(rows) >= BROAD_SHARE * self.keys.sum(-1).log()[:, None]
        else:
            hits = gold_weight > weight.clamp(min=0)
        no_less = gold_weight >= weight
        key, weight = gold.where(no_less, key), gold_weight.where(no_less, weight)
        clear = torch.where(gold_weight < 0, _STEPS - weight, weight)
        misses = ~hits & (weight > gold_weight) & (weight >= _FAINTEST)
        scores = torch.stack([clear.where(hits, -1), weight.where(misses, -1)], -1)
        n = len(self.texts)
        ranks = scores * (n + 1) + torch.arange(n, 0, -1)[:, None, None]  # of equal ones the first
        index = self.texts[:, None, None].expand_as(ranks)
        best = ranks.new_zeros(int(self.texts.max()) + 1, *ranks.shape[1:]).scatter_reduce(0, index, ranks, "amax")
        scores = scores.masked_fill(ranks < best[self.texts], -1)
        return scores, torch.stack([hits, key, weight, gold, gold_weight], -1)


_Kept = tuple[TopExamples, TopExamples]  # hits and misses


class _Search:
    def __init__(self, run: CorpusRun, roles: Sequence[Role], n: int) -> None:
        self._run, self._roles, self._n = run, roles, n
        self._attention = SampledAttention(run.loop.checkpoint, run.loop.seed)
        self._kept: dict[tuple[str, str | None], dict[HeadId, _Kept]] = {}  # by name and direction of a role
        for role in roles:
            kept = TopExamples(n + _SPARE), TopExamples(n + _SPARE)
            self._kept.setdefault((role.role, role.direction), {})[role.id] = kept
        self._token_name = cache(run.loop.checkpoint.tokenizer.convert_ids_to_tokens)

    def examples(self) -> tuple[RoleExamples, ...]:
        """Examples of every role that has any."""
        examples = []
        for role in self._roles:
            groups = [some.different(self._n) for some in self._kept[role.role, role.direction][role.id]]
            examples.append(RoleExamples(role.id, role.role, role.direction, *groups))
        return tuple(role for role in examples if any(role.groups.values()))

    def look(self, corpus: int, batch: Batch) -> None:
        """Run a batch of a corpus, and keep its examples that are among the best."""
        words = None if self._run.loop.corpora[corpus].kind == "gap" else RelatedWords.of_items(batch.items)
        members: Spans = [item.members for item in batch.items] if words is None else words.members
        merged = SpansOfTexts(members, batch.valid.shape[1], torch.device("cpu"))
        instances = {role: _instances(self._run, batch, words, *role) for role in self._kept}
        patterns = dict[int, Tensor]()

        def on_weighted_values(layer: int, weighted: Tensor) -> None:
            tokens = cache(partial(patterns.pop(layer).to, "cpu", torch.float32))
            spans = cache(lambda: merged.between(tokens()))
            for role, some in instances.items():
                kept = {id: of_head for id, of_head in self._kept[role].items() if id.layer == layer}
                if kept and some is not None and len(some.texts):
                    shown = None
                    if role[0] in WRITTEN:
                        shown = self._run.writing.shown(role[0], layer, weighted, batch).cpu()
                    seen = some.seen(spans() if some.spans else tokens(), [id.head for id in kept], shown)
                    self._offer(list(kept.values()), corpus, batch, some, *seen)

        self._attention.run(batch, patterns.__setitem__, on_weighted_values)

    def _offer(
        self, kept: Sequence[_Kept], corpus: int, batch: Batch, some: _Instances, scores: Tensor, seen: Tensor
    ) -> None:
        floors = torch.tensor([[top.floor for top in of_head] for of_head in kept])
        better = (scores >= floors).nonzero()
        at, head, _ = better.T
        numbers = torch.stack([some.texts[at], some.queries[at], some.positions[at], scores[tuple(better.T)]], 1)
        rows = torch.cat([better[:, 1:], numbers, seen[at, head]], 1).tolist()
        for of_head, kind, text, query, position, score, hit, key, weight, gold, gold_weight in rows:
            item = batch.items[text]
            attending, attended, right = (self._unit(item, some.spans, at) for at in (query, key, gold))
            pair, right_pair = (attending, attended), (attending, right)
            if some.reverse:
                pair, right_pair = pair[::-1], right_pair[::-1]
            has_right = gold_weight >= 0
            example = Example(
                self._run.loop.corpora[corpus].path.name,
                item.source.number,
                item.source.text,
                *pair,
                weight=weight / _STEPS,
                hit=bool(hit),
                gold=right_pair if has_right else None,
                gold_weight=gold_weight / _STEPS if has_right else None,
                id=item.source.id,
            )
            kept[of_head][kind].offer(score, (corpus, item.source.number, position), example)

    def _unit(self, item: Prompt, span: bool, at: int) -> Unit:
        """A span of a text, or a token; a special token by name, before or after the text."""
        text = item.source.text
        start, end = (item.source.spans if span else item.offsets)[at]
        if start < end and (span or item.segments[at] == 0):
            return Unit(text[start:end], start, end)
        end = 0 if at == 0 else len(text)
        return Unit(str(self._token_name(item.ids[at])), end, end)


def _instances(
    run: CorpusRun, batch: Batch, words: RelatedWords | None, role: str, direction: str | None
) -> _Instances | None:
    """Instances of a role in a batch of sentences, or of GAP without ``words``; None where there can be none."""
    if words is None:
        return _names(batch, direction) if role == "coreference" else None
    relation = role.removeprefix(SYNTACTIC)
    if relation == role:
        return _content_tokens(run, batch, role)
    if relation not in words.numbers:
        return None
    sizes = torch.tensor(list(map(len, words.members)))
    positions = torch.arange(int(sizes.max()))
    texts, dependents, heads = words.pairs[words.numbers[relation]].T
    queries, wanted = (dependents, heads) if direction == DIRECTIONS[0] else (heads, dependents)
    causal = run.loop.checkpoint.architecture.causal
    visible = positions < queries[:, None] if causal else positions != queries[:, None]
    keys = (positions < sizes[texts, None]) & visible
    right = keys & (positions == wanted[:, None])
    known = right.any(-1)
    texts, queries, dependents, keys, right = (part[known] for part in (texts, queries, dependents, keys, right))
    return _Instances(texts, queries, dependents, keys, right, spans=True)


def _names(batch: Batch, direction: str | None) -> _Instances:
    """Instances of coreference in GAP: the query is span 0, the names are 1 and 2."""
    texts, spans = torch.arange(len(batch.items)), torch.arange(3)
    pronouns = torch.zeros_like(texts)
    answers = torch.tensor([1 + bool(item.source.answer) for item in batch.items])
    keys, right = spans > pronouns[:, None], spans == answers[:, None]
    return _Instances(texts, pronouns, pronouns, keys, right, spans=True, reverse=direction == NAME_DIRECTIONS[1])


def _content_tokens(run: CorpusRun, batch: Batch, role: str) -> _Instances | None:
    non_sink, valid = batch.non_sink.cpu(), batch.valid.cpu()
    keys = valid[:, None] & allowed_units(valid.shape[1], run.loop.checkpoint.architecture.causal)
    right = keys & ~non_sink[:, None]
    spread = role == "broad"
    if role in run.statistics.roles:
        keys = keys & non_sink[:, None]
        right = keys & run.statistics.masks_of(batch)[:, run.statistics.roles.index(role)]
    elif role == "semantic":
        keys, cosines = (tensor.cpu() for tensor in run.meanings.cosines(batch))
        right = keys & (cosines >= MARGIN)
    elif role == RARE_WORD:
        keys = keys & non_sink[:, None]
        rarest, _ = run.pointing.rare_keys(batch.inputs["input_ids"].cpu().numpy(), non_sink.numpy())
        right = keys & torch.from_numpy(rarest)[:, None]
    elif role in WRITTEN:
        right = keys = keys if role == INACTIVE else run.writing.other_keys(batch).cpu()
    elif spread:
        right = torch.zeros_like(keys)
    elif role != SINK:
        return None
    texts, queries = (non_sink & (right.any(-1) | spread)).nonzero().T
    return _Instances(texts, queries, queries, keys[texts, queries], right[texts, queries], spread=spread)


DECILES = 10
_TEXTS, _TOKENS = 100, 4_000  # most texts of each corpus; and about how many tokens of all of them, which bounds memory
_KEYS = 8  # weights of a query that are kept


@dataclass(frozen=True, eq=False)
class TextWeights:
    """The largest weights of every query in one text of n tokens."""

    corpus: str  # the file's name
    item: Prompt
    weights: Tensor  # [n_layers, n_heads, n, keys], the largest first
    keys: Tensor  # their positions

    def strongest(self, id: HeadId, left_out: Tensor) -> tuple[float, int, int]:
        """The largest weight beyond the diagonal and the positions that are left out, its query and its key."""
        keys = self.keys[id]
        hidden = left_out[keys] | left_out[:, None] | (keys == torch.arange(len(keys))[:, None])
        weights = self.weights[id].masked_fill(hidden, 0)
        at = int(weights.argmax())
        return float(weights.flatten()[at]), at // keys.shape[1], int(keys.flatten()[at])


def sampled_weights(run: CorpusRun) -> list[TextWeights]:
    """Read a random sample of the texts once more, and keep the largest weights of all heads."""
    loop, texts = run.loop, list[TextWeights]()
    attention = SampledAttention(loop.checkpoint, loop.seed)

    def keep(corpus: str, batch: Batch) -> None:
        if sum(len(text.item) for text in texts) > _TOKENS:
            return
        largest = list[tuple[Tensor, Tensor]]()
        attention.run(batch, lambda _, pattern: largest.append(pattern.topk(min(_KEYS, pattern.shape[-1]))))
        weights, keys = (torch.stack(parts, 1).cpu() for parts in zip(*largest, strict=True))
        for at, item in enumerate(batch.items):
            own = at, slice(None), slice(None), slice(len(item))
            own_keys = keys[own].clamp(max=len(item) - 1)  # a short text has fewer: others have no weight
            texts.append(TextWeights(corpus, item, weights[own].clone(), own_keys))

    for number, corpus in enumerate(loop.corpora):
        sample = loop.sample(number, _TEXTS)
        name = corpus.path.name
        loop.over(filter(None, map(run.prepared, sample)), partial(keep, name), f"{name}, deciles", len(sample))
    return texts
