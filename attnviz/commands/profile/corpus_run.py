"""What a profile counts over corpora, batch by batch, into the tallies."""

from dataclasses import dataclass

from torch import Tensor

from attnviz.commands.profile.head_distances import HeadDistanceTally
from attnviz.commands.profile.names import NameTally
from attnviz.commands.profile.relations import RelationTally
from attnviz.commands.profile.repeats import SEQUENCES, RepeatTally
from attnviz.commands.profile.tallies import MeaningTally, StatisticsTally, Tally
from attnviz.corpora.batches import Batch, SampledAttention
from attnviz.corpora.bootstrap import text_weights
from attnviz.corpora.reading import Text
from attnviz.corpora.runs import LongRun, Part, RunSettings, ready

_SENTENCES: tuple[str, ...] = ("statistics", "relations", "meanings")
_NAMES, _SAMPLED = ("names",), ("distances",)
"""Names of the tallies that count sentences, GAP's rows, and the verified batches of sentences only."""

_APART = 1 << 40
"""Distance between the text numbers of two corpora, so that each text has its own bootstrap weights."""


@dataclass(frozen=True)
class ProfileSettings(RunSettings):
    """What is to be measured."""

    @property
    def sentences(self) -> bool:
        """Whether there are other texts than GAP's."""
        return any(corpus.kind != "gap" for corpus in self.corpora)

    @property
    def gold(self) -> bool:
        """Whether there are gold trees, with which a parser's are not to be mixed."""
        return any(corpus.kind == "conllu" for corpus in self.corpora)


class CorpusRun(LongRun):
    """The run of a profile; ``tallies`` are what is counted of texts, by name."""

    settings: ProfileSettings

    def _begin(self) -> dict[str, Part]:
        settings, checkpoint = self.settings, self.settings.checkpoint
        shape, causal = (checkpoint.n_layers, checkpoint.n_heads), checkpoint.architecture.causal
        self.statistics = StatisticsTally(*shape, causal, windows=checkpoint.windows)
        self.relations, self.meanings = RelationTally(*shape, causal), MeaningTally(checkpoint)
        self.names, self.distances = NameTally(*shape, causal), HeadDistanceTally(*shape)
        self.tallies: dict[str, Tally] = {
            "statistics": self.statistics, "relations": self.relations, "meanings": self.meanings,
            "names": self.names, "distances": self.distances,
        }  # fmt: skip
        self.repeats = RepeatTally(checkpoint, settings.seed)
        self.attention = SampledAttention(checkpoint, settings.seed)
        return {**self.tallies, "repeats": self.repeats, "attention": self.attention}

    def measure_repeats(self) -> None:
        """Measure this process's share of the random sequences."""
        own = [number for number in range(SEQUENCES) if self.settings.process.owns(number)]
        tell, batch_size = self.settings.progress, self.settings.batch_size
        self.repeats.measure(self.attention, own, batch_size, lambda done: tell("repeats", done, len(own)))

    def prepared(self, text: Text) -> Text | None:
        """A sentence, or an example of GAP; None where a causal model cannot look from its pronoun to both names."""
        settings = self.settings
        if text.answer is None:
            return ready(text, None if settings.gold else settings.parse)
        pronoun, *names = text.spans
        ahead = any(name[1] > pronoun[0] for name in names)
        if ahead and settings.checkpoint.architecture.causal:
            return None
        return text if settings.parse is None else settings.parse.with_subjects(text)

    def _count(self, number: int, batch: Batch) -> None:
        """One batch through the model, and its patterns to the tallies of its kind of corpus."""
        names = _SENTENCES + (_SAMPLED if self.attention.next_is_verified else ())
        names = _NAMES if self.settings.corpora[number].kind == "gap" else names
        tallies = [self.tallies[name] for name in names if name in self.tallies]
        weights = text_weights(self.settings.seed, [number * _APART + item.source.number for item in batch.items])
        for tally in tallies:
            tally.begin(batch, weights)

        def visit(layer: int, pattern: Tensor) -> None:
            for tally in tallies:
                tally.add(layer, pattern, batch)

        self.attention.run(batch, visit)
