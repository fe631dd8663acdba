"""Example sentences of roles: the clearest hits, and the clearest misses.

Once the roles are judged, a random sample of the texts is read a second time, for the roles that get examples. An
instance of a role is a word of a relation, a pronoun, or a content token. It is a hit where the head attends most to a
key that is right, and a miss where it attends most to another; of ``broad`` it is a hit where the token's attention is
spread as the role asks for. Of copying the keys are right whose tokens the head raises, of ``inactive`` all keys of a
token at which it is quiet. Hits are ranked by their weight (of ``broad`` the least first), misses by that of the wrong
key, one a text each.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.commands.profile.corpus_run import CorpusRun
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
from attnviz.texts.batches import Batch, EncodedText

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
    attention = SampledAttention(loop.checkpoint, loop.seed)
    for number, corpus in enumerate(loop.corpora):
        if any((role.role == "coreference") == (corpus.kind == "gap") for role in shown):
            sample = loop.sample(number, SAMPLED_TEXTS)
            texts = filter(None, map(run.prepared, sample))
            look = partial(search.look, attention, number)
            loop.over(texts, look, f"{corpus.path.name}, examples", len(sample))
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

    def seen(self, weights: Tensor, heads: Sequence[int], shown: Tensor | None = None) -> "_Seen":
        """Evaluate heads from weights, [batch, n_heads, n, n]; ``shown`` are right keys that heads do not share."""
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
        return _Seen(hits, gold.where(no_less, key), gold_weight.where(no_less, weight), gold, gold_weight)


class _Seen(NamedTuple):
    """Heads in instances of a role, [n, n_heads] each; weights are in ten-thousandths."""

    hits: Tensor
    key: Tensor
    weight: Tensor
    gold: Tensor  # the right key
    gold_weight: Tensor  # -1 without a right key

    def scores(self, texts: Tensor) -> Tensor:
        """Scores as hit and miss, [n, n_heads, 2]; one of each a text, else -1."""
        clear = torch.where(self.gold_weight < 0, _STEPS - self.weight, self.weight)
        misses = ~self.hits & (self.weight > self.gold_weight) & (self.weight >= _FAINTEST)
        scores = torch.stack([clear.where(self.hits, -1), self.weight.where(misses, -1)], -1)
        ranks = scores * (len(texts) + 1) + torch.arange(len(texts), 0, -1)[:, None, None]  # of equal ones the first
        index = texts[:, None, None].expand_as(ranks)
        best = ranks.new_zeros(int(texts.max()) + 1, *ranks.shape[1:]).scatter_reduce(0, index, ranks, "amax")
        return scores.masked_fill(ranks < best[texts], -1)


_RoleName = tuple[str, str | None]  # name and direction of a role
_Kept = tuple[TopExamples, TopExamples]  # hits and misses


class _Search:
    def __init__(self, run: CorpusRun, roles: Sequence[Role], n: int) -> None:
        self._run, self._roles, self._n = run, roles, n
        self._kept: dict[_RoleName, dict[HeadId, _Kept]] = {}
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

    def look(self, attention: SampledAttention, corpus: int, batch: Batch) -> None:
        """Run a batch of a corpus, and keep its examples that are among the best."""
        members: Spans
        if self._run.loop.corpora[corpus].kind == "gap":
            members, instances = [item.members for item in batch.items], self._of_names(batch)
        else:
            words = RelatedWords.of_items(batch.items)
            members, instances = words.members, self._of_sentences(batch, words)
        merged = SpansOfTexts(members, batch.valid.shape[1], torch.device("cpu"))
        patterns = dict[int, Tensor]()

        def on_weighted_values(layer: int, weighted: Tensor) -> None:
            tokens = cache(partial(patterns.pop(layer).to, "cpu", torch.float32))
            spans = cache(lambda: merged.between(tokens()))
            for role, some in instances.items():
                kept = {id: of_head for id, of_head in self._kept[role].items() if id.layer == layer}
                if kept and len(some.texts):
                    shown = None
                    if role[0] in WRITTEN:
                        shown = self._run.writing.shown(role[0], layer, weighted, batch).cpu()
                    seen = some.seen(spans() if some.spans else tokens(), [id.head for id in kept], shown)
                    self._offer(list(kept.values()), corpus, batch, some, seen)

        attention.run(batch, patterns.__setitem__, on_weighted_values)

    def _of_names(self, batch: Batch) -> dict[_RoleName, _Instances]:
        """Instances of coreference in GAP: the query is span 0, the names are 1 and 2."""
        texts, spans = torch.arange(len(batch.items)), torch.arange(3)
        pronouns = torch.zeros_like(texts)
        answers = torch.tensor([1 + bool(item.source.answer) for item in batch.items])
        both = _Instances(texts, pronouns, pronouns, spans > pronouns[:, None], spans == answers[:, None], spans=True)
        names = [role for role in self._kept if role[0] == "coreference"]
        return {role: replace(both, reverse=role[1] == NAME_DIRECTIONS[1]) for role in names}

    def _of_sentences(self, batch: Batch, words: RelatedWords) -> dict[_RoleName, _Instances]:
        sizes = torch.tensor(list(map(len, words.members)))
        causal = self._run.loop.checkpoint.architecture.causal
        positions = torch.arange(int(sizes.max()))
        instances = dict[_RoleName, _Instances]()
        for role, direction in self._kept:
            relation = role.removeprefix(SYNTACTIC)
            if relation == role:
                some = _content_tokens(self._run, batch, role)
                if some is not None:
                    instances[role, direction] = some
            elif relation in words.numbers:
                texts, dependents, heads = words.pairs[words.numbers[relation]].T
                queries, wanted = (dependents, heads) if direction == DIRECTIONS[0] else (heads, dependents)
                visible = positions < queries[:, None] if causal else positions != queries[:, None]
                keys = (positions < sizes[texts, None]) & visible
                right = keys & (positions == wanted[:, None])
                parts, known = (texts, queries, dependents, keys, right), right.any(-1)
                texts, queries, dependents, keys, right = (part[known] for part in parts)
                instances[role, direction] = _Instances(texts, queries, dependents, keys, right, spans=True)
        return instances

    def _offer(self, kept: Sequence[_Kept], corpus: int, batch: Batch, some: _Instances, seen: _Seen) -> None:
        scores = seen.scores(some.texts)
        floors = torch.tensor([[top.floor for top in of_head] for of_head in kept])
        better = (scores >= floors).nonzero()
        at, head, _ = better.T
        numbers = torch.stack([some.texts[at], some.queries[at], some.positions[at], scores[tuple(better.T)]], 1)
        readings = torch.stack([of_heads[at, head] for of_heads in seen], 1)
        rows = torch.cat([better[:, 1:], numbers, readings], 1).tolist()
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

    def _unit(self, item: EncodedText, span: bool, at: int) -> Unit:
        """A span of a text, or a token; a special token by name, before or after the text."""
        text = item.source.text
        start, end = (item.source.spans if span else item.offsets)[at]
        if start < end:
            return Unit(text[start:end], start, end)
        end = 0 if at == 0 else len(text)
        return Unit(str(self._token_name(item.ids[at])), end, end)


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
