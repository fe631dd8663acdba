"""The run of a profile over its corpora."""

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.inputs.frequencies import Frequencies, token_counts
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import Parser, ready
from attnviz.inputs.text import rendered
from attnviz.judge import roles as judged
from attnviz.judge.roles import Candidate
from attnviz.measures.chats import ChatTally
from attnviz.measures.head_distances import HeadDistanceTally
from attnviz.measures.measure import Measure
from attnviz.measures.names import NameTally
from attnviz.measures.pointing import PointingTally
from attnviz.measures.relations import RelationTally
from attnviz.measures.repeats import RepeatTally
from attnviz.measures.tallies import MeaningTally, StatisticsTally, batch_weights, counting
from attnviz.measures.writing import WritingTally
from attnviz.run.corpus import CorpusLoop, SampledAttention


class CorpusRun:
    """The measures of a profile over the corpora of a loop, and of random ``repeats``."""

    def __init__(
        self, loop: CorpusLoop, parse: Parser | None = None, listed: Frequencies | None = None, *, repeats: bool = False
    ) -> None:
        self.loop, self._parse = loop, parse
        checkpoint = loop.checkpoint
        self.statistics = StatisticsTally(checkpoint)
        self.relations, self.meanings = RelationTally(checkpoint), MeaningTally(checkpoint)
        self.writing = WritingTally(checkpoint)
        self.chats = ChatTally(checkpoint)
        counts = partial(token_counts, checkpoint, loop.corpora, loop.limit, listed)
        self.pointing = PointingTally(checkpoint, counts)
        self.names, self.distances = NameTally(checkpoint), HeadDistanceTally(checkpoint)
        self.repeats, self._has_repeats = RepeatTally(checkpoint, loop.seed), repeats
        self.attention = loop.attention

    @property
    def sentences(self) -> bool:
        """Whether there are sentences besides GAP's examples."""
        return any(corpus.kind != "gap" for corpus in self.loop.corpora)

    @property
    def gold(self) -> bool:
        """Whether there are gold trees; a parser's are then not used."""
        return any(corpus.kind == "conllu" for corpus in self.loop.corpora)

    def measure(self) -> bool:
        """Measure this process's share of all corpora, and of random repeats; True in the first, which merges."""
        parts = {name: part for name, part in vars(self).items() if isinstance(part, Measure | SampledAttention)}
        self.loop.measure(parts, self.count, self.prepared)
        if self._has_repeats:
            self.repeats.measure(self.loop)
        return self.loop.gather()

    def candidates(self) -> Iterator[Candidate]:
        """The scores of every head for every role."""
        if self.sentences:
            yield from judged.statistic_candidates(self.statistics)
            if self.loop.checkpoint.architecture.has_words:
                yield from judged.semantic_candidates(self.meanings)
            yield from judged.writing_candidates(self.writing)
            yield from judged.rare_candidates(self.pointing)
        if self._has_repeats:
            yield from judged.repeat_candidates(self.repeats.results(), previous=not self.sentences)
        yield from judged.syntax_candidates(self.relations.results())
        yield from judged.coreference_candidates(self.names.results())

    def prepared(self, text: Text) -> Text | None:
        """Encode a sentence, or an example of GAP; None if a causal model's pronoun does not see both names."""
        checkpoint, parse = self.loop.checkpoint, self._parse
        if text.chat:
            return rendered(text, checkpoint)
        if text.answer is None:
            return ready(rendered(text, checkpoint), None if self.gold else parse)
        pronoun, *names = text.spans
        ahead = any(name[1] > pronoun[0] for name in names)
        if ahead and checkpoint.architecture.causal:
            return None
        return text if parse is None else parse.with_subjects(text)

    def count(self, number: int, batch: Batch) -> None:
        """Run a batch through the model, and add its patterns to the measures of its kind of corpus."""
        measures: list[Measure] = [self.statistics, self.relations, self.meanings, self.writing, self.pointing]
        on_weighted_values: Callable[[int, Tensor], None] | None = self.writing.add_written
        kind = self.loop.corpora[number].kind
        if kind == "gap":
            measures, on_weighted_values = [self.names], None
        elif self.attention.next_is_verified:
            measures.append(self.distances)
        if kind == "chats":
            measures.append(self.chats)
        with counting(measures, batch, batch_weights(self.loop.seed, batch, number)) as count:
            self.attention.run(batch, count, on_weighted_values)
