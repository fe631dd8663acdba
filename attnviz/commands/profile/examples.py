"""Sentences in which heads show their roles best, at the deciles, and in which they fail most clearly.

Once the roles are judged, a random sample of the texts is read a second time, for the roles that get examples. An
instance of a role is a word of a relation, a pronoun, or a content token. It is a hit where the head attends most to a
key that is right, and a miss where it attends most to another; of ``broad`` it is a hit where the token's attention is
spread as the role asks for. Hits are ranked by their weight (of ``broad`` the least first), misses by that of the wrong
key, one a text each; deciles are by the weight of the right key, over a random sample of the instances.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappush, heappushpop, nsmallest
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.judge.roles import Role
from attnviz.judge.rules import BROAD_SHARE, MARGIN
from attnviz.language.syntax import DIRECTIONS
from attnviz.measures.bootstrap import named_generator
from attnviz.measures.names import NAME_DIRECTIONS
from attnviz.measures.patterns import allowed_units
from attnviz.measures.relations import RelatedWords, Spans, between_spans
from attnviz.models.head_ids import HeadId
from attnviz.profiles.examples import Example, RoleExamples, Unit
from attnviz.profiles.parts import SYNTACTIC
from attnviz.reference.attention import entropy
from attnviz.texts.batches import Batch, EncodedText, SampledAttention, batches
from attnviz.texts.reading import Text, read_texts
from attnviz.texts.runs import RunSettings

SAMPLED_TEXTS = 500
"""Texts of each corpus, at most, that examples are taken from: as many as an untrained copy is measured on."""

SAMPLED = 99
"""Instances of a role that are drawn at random, for the deciles; of 99 in order, each tenth one is a decile."""

_STEPS = 10_000
"""Weights are rounded to four decimals, since those of two batches of different length differ by rounding."""

_FAINTEST = _STEPS // 100
"""The least weight of a key for which a miss is told."""

_SPARE = 4
"""So many more are kept, for those that turn out to be the same sentence again."""


def find_examples(run: CorpusRun, roles: Sequence[Role], n: int) -> tuple[RoleExamples, ...]:
    """Examples of the roles that each head passes, and of the relation in which it is most above its baseline.

    Args:
        run: in which the roles were measured.
        roles: of all heads.
        n: how many of the best, and of the failures.

    Raises:
        VerificationError: the heads do not reproduce the model on a sample of these texts.
    """
    roles, settings = _with_examples(roles) if n else [], run.settings
    search = _Search(run, roles, n)
    attention = SampledAttention(settings.checkpoint, settings.seed)
    for number, corpus in enumerate(settings.corpora):
        wanted = any((role.role == "coreference") == (corpus.kind == "gap") for role in roles)
        drawn, done = _drawn(settings, number) if wanted else [], 0
        texts = (text for each in drawn if (text := run.prepared(each)) is not None)
        for batch in batches(settings.checkpoint, texts, settings.batch_size, lambda *_: None):
            search.look(attention, number, batch)
            done += len(batch.items)
            settings.progress(f"{corpus.path.name}, examples", done, len(drawn))
    return search.examples()


def _with_examples(roles: Sequence[Role]) -> list[Role]:
    """The roles that pass, and of each head the best relation, by head."""
    best: dict[HeadId, Role] = {}
    for role in roles:
        if role.role.startswith(SYNTACTIC):
            best[role.id] = max(best.get(role.id, role), role, key=attrgetter("margin"))
    return sorted((role for role in roles if role.passed or role is best.get(role.id)), key=attrgetter("id"))


def _drawn(settings: RunSettings, number: int) -> list[Text]:
    """A random sample of a corpus, in the order of its texts."""

    def priority(text: Text) -> float:
        return random.Random(f"{settings.seed}:{number}:{text.number}").random()  # noqa: S311 - a sample, not a secret

    texts = read_texts(settings.corpora[number], settings.limit)
    return sorted(nsmallest(SAMPLED_TEXTS, texts, key=priority), key=attrgetter("number"))


class TopExamples:
    """The ``n`` examples of the highest scores; of equal scores those of the first texts."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._heap: list[tuple[int, int, int, int, Example]] = []

    @property
    def floor(self) -> int:
        """The least score that is kept."""
        return self._heap[0][0] if len(self._heap) == self._n else 0

    def offer(self, score: int, place: tuple[int, int, int], example: Example) -> None:
        """Keep an example if it is one of the best; no other has its ``place``: corpus, text, position."""
        corpus, text, position = place
        ranked = score, -corpus, -text, -position, example
        if len(self._heap) < self._n:
            heappush(self._heap, ranked)
        else:
            heappushpop(self._heap, ranked)

    def ranked(self) -> list[Example]:
        """The best first."""
        return [each[-1] for each in sorted(self._heap, reverse=True)]

    def different(self, n: int) -> tuple[Example, ...]:
        """The first ``n`` whose text and pair are those of none before."""
        seen: dict[object, Example] = {}
        for each in self.ranked():
            seen.setdefault((each.text, each.query, each.key), each)
        return tuple(seen.values())[:n]

    def deciles(self) -> tuple[Example, ...]:
        """The nine at the deciles by the weight of the right key, or of the only one, the least first."""
        order = sorted(self.ranked(), key=lambda each: each.weight if each.gold_weight is None else each.gold_weight)
        at = dict.fromkeys(max(0, tenth * (len(order) + 1) // 10 - 1) for tenth in range(1, 10))
        return tuple(order[place] for place in at if place < len(order))


@dataclass(frozen=True)
class _Instances:
    """The instances of a role in a batch, a row of attention weights each.

    Attributes:
        texts, queries: [n], the text of each in the batch, and the query.
        places: [n], by which those of one text differ.
        keys, right: boolean [n, n_keys], the keys among which the head chooses, and which of them are right.
        spans: whether queries and keys are spans of the text, not tokens.
        reverse: whether it is the keys that attend to the query.
        spread: whether a hit is attention that is spread over all keys, and no key is right.
    """

    texts: Tensor
    queries: Tensor
    places: Tensor
    keys: Tensor
    right: Tensor
    spans: bool = False
    reverse: bool = False
    spread: bool = False

    def seen(self, weights: Tensor, heads: Sequence[int]) -> "_Seen":
        """What some heads do, by weights of [batch, n_heads, n, n] that the queries and the keys are of."""
        weights = weights.mT if self.reverse else weights
        rows = weights[self.texts[:, None], torch.tensor(heads), self.queries[:, None]]  # [n, n_heads, n_keys]
        weights = (rows * _STEPS).round().long()
        gold_weight, gold = weights.masked_fill(~self.right[:, None], -1).max(-1)
        weight, key = weights.masked_fill(~(self.keys & ~self.right)[:, None], -1).max(-1)
        if self.spread:
            hits = entropy(rows) >= BROAD_SHARE * self.keys.sum(-1).log()[:, None]
        else:
            hits = gold_weight > weight.clamp(min=0)
        no_less = gold_weight >= weight
        return _Seen(hits, gold.where(no_less, key), gold_weight.where(no_less, weight), gold, gold_weight)


class _Seen(NamedTuple):
    """What heads do in instances of a role, [n, n_heads] each, weights in ten-thousandths.

    Attributes:
        hits: whether the head does what the role says.
        key, weight: what it attends to most.
        gold, gold_weight: the right key of most weight; -1 for the weight where none is right.
    """

    hits: Tensor
    key: Tensor
    weight: Tensor
    gold: Tensor
    gold_weight: Tensor

    def scores(self, texts: Tensor, random: Tensor) -> Tensor:
        """As hits, as misses and as one of a sample, [n, n_heads, 3]; of hits and misses one a text, -1 elsewhere."""
        clear = torch.where(self.gold_weight < 0, _STEPS - self.weight, self.weight)
        misses = ~self.hits & (self.weight > self.gold_weight) & (self.weight >= _FAINTEST)
        scores = torch.stack([clear.where(self.hits, -1), self.weight.where(misses, -1)], -1)
        ranks = scores * (len(texts) + 1) + torch.arange(len(texts), 0, -1)[:, None, None]  # of equal ones the first
        index = texts[:, None, None].expand_as(ranks)
        best = ranks.new_zeros(int(texts.max()) + 1, *ranks.shape[1:]).scatter_reduce(0, index, ranks, "amax")
        scores = scores.masked_fill(ranks < best[texts], -1)
        return torch.cat([scores, random[:, None, None].expand_as(scores[..., :1])], -1)


_Role = tuple[str, str | None]
"""Name and direction of a role."""

_Kept = tuple[TopExamples, TopExamples, TopExamples]
"""Hits, misses, and a sample of the instances."""


class _Search:
    """Looks for examples of some roles batch by batch."""

    def __init__(self, run: CorpusRun, roles: Sequence[Role], n: int) -> None:
        self._run, self._roles, self._n = run, roles, n
        self._causal = run.settings.checkpoint.architecture.causal
        self._kept: dict[_Role, dict[HeadId, _Kept]] = {}
        for role in roles:
            kept = TopExamples(n + _SPARE), TopExamples(n + _SPARE), TopExamples(SAMPLED)
            self._kept.setdefault((role.role, role.direction), {})[role.id] = kept
        self._token_name = cache(run.settings.checkpoint.tokenizer.convert_ids_to_tokens)

    def examples(self) -> tuple[RoleExamples, ...]:
        """Those of every role that has any."""
        found = []
        for role in self._roles:
            hits, misses, sample = self._kept[role.role, role.direction][role.id]
            groups = hits.different(self._n), sample.deciles(), misses.different(self._n)
            found.append(RoleExamples(role.id, role.role, role.direction, *groups))
        return tuple(each for each in found if any(each.groups.values()))

    def look(self, attention: SampledAttention, corpus: int, batch: Batch) -> None:
        """Run a batch of a corpus, and keep the examples in it that are better than those before."""
        names = self._run.settings.corpora[corpus].kind == "gap"
        members, instances = self._of_names(batch) if names else self._of_sentences(batch)
        seed = self._run.settings.seed
        random = pad_sequence([_priorities(f"{seed}:{corpus}", item) for item in batch.items], batch_first=True)

        def visit(layer: int, pattern: Tensor) -> None:
            tokens = cache(lambda: pattern.float().cpu())
            spans = cache(lambda: between_spans(tokens(), members))
            for role, some in instances.items():
                kept = {id: each for id, each in self._kept[role].items() if id.layer == layer}
                if kept and len(some.texts):
                    seen = some.seen(spans() if some.spans else tokens(), [id.head for id in kept])
                    scores = seen.scores(some.texts, random[some.texts, some.places])
                    self._offer(list(kept.values()), corpus, batch, some, seen, scores)

        attention.run(batch, visit)

    def _of_names(self, batch: Batch) -> tuple[Spans, dict[_Role, _Instances]]:
        """The spans of GAP's examples as tokens, and the pronouns by role."""
        found = {role: _pronouns(batch, role[1]) for role in self._kept if role[0] == "coreference"}
        return [item.members for item in batch.items], found

    def _of_sentences(self, batch: Batch) -> tuple[Spans, dict[_Role, _Instances]]:
        """The words of sentences as tokens, and the instances of relations and of roles of tokens."""
        words = RelatedWords.of_batch(batch)
        sizes = torch.tensor(list(map(len, words.members)))
        found = {}
        for role, direction in self._kept:
            relation = role.removeprefix(SYNTACTIC)
            if relation == role:
                found[role, direction] = _content_tokens(self._run, batch, role)
            elif relation in words.numbers:
                found[role, direction] = _words(words.pairs[words.numbers[relation]], sizes, direction, self._causal)
        return words.members, {role: some for role, some in found.items() if some is not None}

    def _offer(
        self, kept: Sequence[_Kept], corpus: int, batch: Batch, some: _Instances, seen: _Seen, scores: Tensor
    ) -> None:
        """Keep what is better than before."""
        floors = torch.tensor([[top.floor for top in of_head] for of_head in kept])
        better = (scores >= floors).nonzero()
        at, head, _ = better.T
        numbers = torch.stack([some.texts[at], some.queries[at], some.places[at], scores[tuple(better.T)]], 1)
        readings = torch.stack([each[at, head] for each in seen], 1)
        rows = torch.cat([better[:, 1:], numbers, readings], 1).tolist()
        for of_head, kind, text, query, place, score, *reading in rows:
            item = batch.items[text]
            example = self._example(item, corpus, some, query, reading)
            kept[of_head][kind].offer(score, (corpus, item.source.number, place), example)

    def _example(self, item: EncodedText, corpus: int, some: _Instances, query: int, reading: Sequence[int]) -> Example:
        """A query of a text, and what a head does there, as in :class:`_Seen`."""
        hit, key, weight, gold, gold_weight = reading
        pair, right = ((self._unit(item, some.spans, query), self._unit(item, some.spans, at)) for at in (key, gold))
        if some.reverse:
            pair, right = pair[::-1], right[::-1]
        name = self._run.settings.corpora[corpus].path.name
        told = (None, None) if gold_weight < 0 else (right, gold_weight / _STEPS)
        return Example(name, item.source.number, item.source.text, *pair, weight / _STEPS, bool(hit), *told)

    def _unit(self, item: EncodedText, span: bool, at: int) -> Unit:
        """A span of a text, or a token; of a special one the name, which stands before the text or after it."""
        text = item.source.text
        start, end = (item.source.spans if span else item.offsets)[at]
        if start < end:
            return Unit(text[start:end], start, end)
        end = 0 if at == 0 else len(text)
        return Unit(str(self._token_name(item.ids[at])), end, end)


def _priorities(name: str, item: EncodedText) -> Tensor:
    """Random numbers for the positions of a text, the same in every batch; those of the largest are the sample."""
    n = max(len(item), len(item.members))
    return torch.randint(1 << 31, (n,), generator=named_generator(f"{name}:{item.source.number}"))


def _content_tokens(run: CorpusRun, batch: Batch, role: str) -> _Instances | None:
    """Those of which a role is asked; None for a role that is not about the tokens of sentences."""
    non_sink, valid = batch.non_sink.cpu(), batch.valid.cpu()
    keys = valid[:, None] & allowed_units(valid.shape[1], run.settings.checkpoint.architecture.causal)
    right, spread = keys & ~non_sink[:, None], role == "broad"
    if role in run.statistics.roles:
        keys = keys & non_sink[:, None]
        right = keys & run.statistics.masks_of(batch)[:, run.statistics.roles.index(role)]
    elif role == "semantic":
        keys, cosines = (each.cpu() for each in run.meanings.cosines(batch))
        right = keys & (cosines >= MARGIN)
    elif spread:
        right = torch.zeros_like(keys)
    elif role != "sink":
        return None
    texts, queries = (non_sink & (right.any(-1) | spread)).nonzero().T
    return _Instances(texts, queries, queries, keys[texts, queries], right[texts, queries], spread=spread)


def _words(pairs: Tensor, sizes: Tensor, direction: str | None, causal: bool) -> _Instances:
    """Those of a relation, by text, dependent and head, [n, 3], in texts of so many words, that the model can see."""
    texts, dependents, heads = pairs.T
    queries, wanted = (dependents, heads) if direction == DIRECTIONS[0] else (heads, dependents)
    word = torch.arange(int(sizes.max()))
    keys = (word < sizes[texts, None]) & (word < queries[:, None] if causal else word != queries[:, None])
    right = keys & (word == wanted[:, None])
    asked = right.any(-1)
    texts, queries, dependents, keys, right = (each[asked] for each in (texts, queries, dependents, keys, right))
    return _Instances(texts, queries, dependents, keys, right, spans=True)


def _pronouns(batch: Batch, direction: str | None) -> _Instances:
    """Those of GAP: of each text span 0, the names being 1 and 2."""
    texts = torch.arange(len(batch.items))
    pronouns = torch.zeros_like(texts)
    answers = torch.tensor([1 + bool(item.source.answer) for item in batch.items])
    keys, right = torch.arange(3) > pronouns[:, None], torch.arange(3) == answers[:, None]
    return _Instances(texts, pronouns, pronouns, keys, right, spans=True, reverse=direction == NAME_DIRECTIONS[1])
