"""The run of a profile over its corpora."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from attnviz.measures.bootstrap import text_weights
from attnviz.measures.chats import ChatTally
from attnviz.measures.head_distances import HeadDistanceTally
from attnviz.measures.names import NameTally
from attnviz.measures.pointing import PointingTally
from attnviz.measures.relations import RelationTally
from attnviz.measures.repeats import SEQUENCES, RepeatTally
from attnviz.measures.tallies import MeaningTally, StatisticsTally, Tally, counting
from attnviz.measures.writing import WritingTally
from attnviz.texts.batches import Batch, SampledAttention
from attnviz.texts.long_runs import Measured
from attnviz.texts.reading import Text, ready, rendered
from attnviz.texts.runs import Additive, LongRun, RunSettings, token_counts

# Distance between the text numbers of two corpora, so that each text has its own bootstrap weights.
TEXTS_APART = 1 << 40

_PARTS = "statistics relations meanings names writing distances repeats attention chats pointing".split()


class CorpusRun:
    """Tallies of a profile, and how much of each corpus is ``measured``."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        checkpoint = settings.checkpoint
        shape = (checkpoint.n_layers, checkpoint.n_heads)
        causal = checkpoint.architecture.causal
        learned = checkpoint.architecture.learned_sinks
        self.statistics = StatisticsTally(*shape, causal, windows=checkpoint.windows, learned_sinks=learned)
        self.relations, self.meanings = RelationTally(*shape, causal), MeaningTally(checkpoint)
        self.writing = WritingTally(checkpoint)
        self.chats = ChatTally(checkpoint)
        counts = partial(token_counts, checkpoint, settings.corpora, settings.limit, settings.frequencies)
        self.pointing = PointingTally(checkpoint, counts)
        self.names, self.distances = NameTally(*shape, causal), HeadDistanceTally(*shape, learned)
        self.repeats = RepeatTally(checkpoint, settings.seed)
        self.attention = SampledAttention(checkpoint, settings.seed)
        self.measured: list[Measured] = []

    @property
    def sentences(self) -> bool:
        """Whether there are sentences besides GAP's examples."""
        return any(corpus.kind != "gap" for corpus in self.settings.corpora)

    @property
    def gold(self) -> bool:
        """Whether there are gold trees; a parser's are then not used."""
        return any(corpus.kind == "conllu" for corpus in self.settings.corpora)

    def measure(self, *, repeats: bool) -> bool:
        """Measure this process's share of all corpora, and of random ``repeats``; True in the first, which merges."""
        parts: dict[str, Additive] = {name: getattr(self, name) for name in _PARTS}
        run = LongRun(self.settings, parts, self.count, self.prepared)
        run.measure()
        if repeats:
            settings, tell = self.settings, self.settings.progress
            numbers = [number for number in range(SEQUENCES) if settings.process.owns(number)]
            self.repeats.measure(
                self.attention, numbers, settings.batch_size, lambda done: tell("repeats", done, len(numbers))
            )
        self.measured = run.measured
        return run.gather()

    def prepared(self, text: Text) -> Text | None:
        """Encode a sentence, or an example of GAP; None if a causal model's pronoun does not see both names."""
        settings = self.settings
        if text.messages:
            return rendered(text, settings.checkpoint.tokenizer)
        if text.answer is None:
            return ready(text, None if self.gold else settings.parse)
        pronoun, *names = text.spans
        ahead = any(name[1] > pronoun[0] for name in names)
        if ahead and settings.checkpoint.architecture.causal:
            return None
        return text if settings.parse is None else settings.parse.with_subjects(text)

    def count(self, number: int, batch: Batch) -> None:
        """Run a batch through the model, and add its patterns to the tallies of its kind of corpus."""
        tallies: list[Tally] = [self.statistics, self.relations, self.meanings, self.writing, self.pointing]
        on_weighted_values: Callable[[int, Tensor], None] | None = partial(self.writing.add_written, batch=batch)
        if self.settings.corpora[number].kind == "gap":
            tallies, on_weighted_values = [self.names], None
        elif self.attention.next_is_verified:
            tallies.append(self.distances)
        if self.settings.corpora[number].kind == "chats":
            tallies.append(self.chats)
        weights = text_weights(self.settings.seed, [number * TEXTS_APART + item.source.number for item in batch.items])
        with counting(tallies, batch, weights) as count:
            self.attention.run(batch, count, on_weighted_values)
