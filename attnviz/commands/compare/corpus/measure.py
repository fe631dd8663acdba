"""Compare every head of two models over a corpus.

The distance of a head is the mean over texts, with an interval from a bootstrap over them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from attnviz.commands.compare.differences import Difference, DifferenceTally
from attnviz.commands.compare.sides import check_shapes, model_names
from attnviz.errors import TextError
from attnviz.judge.roles import Role, judged_roles, roles_by_head, statistic_candidates, syntax_candidates
from attnviz.measures.bootstrap import ENOUGH_TEXTS, text_weights
from attnviz.measures.intervals import SAMPLES
from attnviz.measures.relations import RelationTally
from attnviz.measures.tallies import StatisticsTally, counting
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.opening import Model, named_source, refuse_words
from attnviz.options import ModelOptions, checked
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress, report_once, with_suffix
from attnviz.texts.batches import Batch, SampledAttention, encode, split_batch
from attnviz.texts.long_runs import Unfinished, joined_processes, own_file, this_process
from attnviz.texts.reading import Corpus, check_columns, find_parser, open_corpus, ready
from attnviz.texts.runs import Additive, LongRun, RunSettings, open_for, text_notes
from attnviz.texts.tables import Columns
from attnviz.trace.checks import Verification
from attnviz.version import __version__
from attnviz.wording import counted, visible

_MOST_WEIGHTS = 1 << 26
"""Attention weights of all layers that are kept at once, but for a single text: a quarter of a gigabyte in float32."""

Visit = Callable[[int, Tensor], None]
"""Takes a layer and its patterns."""


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadChange(Difference):
    """Difference of one head over a corpus; ``before`` and ``after``: its clearest role in A and in B, None if none."""

    before: Role | None
    after: Role | None

    @property
    def role_changed(self) -> bool:
        """Whether the clearest role differs in B."""
        return getattr(self.before, "role", None) != getattr(self.after, "role", None)


@dataclass(frozen=True, repr=False, eq=False)
class CorpusComparison(Result, OfHeads[HeadChange]):
    """What :func:`compare_corpus` measured; both models are verified on a sample of the texts.

    Attributes:
        first, second: the models, A and B.
        corpus: the file.
        texts, tokens, left_out: how many were compared, and how many texts were not.
        seed: of everything random.
        verifications: of A and of B.
        texts_verified: on how many texts.
        parser: the parser of a corpus without trees; None without one.
        heads: one entry a head, the most different first.
        largest: mean over texts of the largest possible distance: in a causal model the first token of a
            text sees itself alone and cannot differ.
        text_notes: sentences on how A reads the corpus.
    """

    command: ClassVar[str] = "compare.corpus"
    noun: ClassVar[str] = "Comparison"

    first: Checkpoint
    second: Checkpoint
    corpus: Corpus
    texts: int
    tokens: int
    left_out: int
    seed: int
    verifications: tuple[Verification, Verification]
    texts_verified: int
    parser: str | None
    heads: tuple[HeadChange, ...]
    largest: float
    text_notes: tuple[str, ...] = ()

    @property
    def reading_notes(self) -> list[str]:
        """Those of both models, and of the corpus."""
        return list(dict.fromkeys([*self.first.notes, *self.second.notes, *self.text_notes]))

    @property
    def checkpoint(self) -> Checkpoint:  # type: ignore[override] # of the heads' numbers
        """A, which has as many layers and heads as B."""
        return self.first

    @property
    def side_names(self) -> tuple[str, str]:
        """Names of A and B."""
        return model_names(self.first, self.second)

    @property
    def judged(self) -> bool:
        """Whether there are enough texts for intervals."""
        return self.texts >= ENOUGH_TEXTS

    @property
    def source(self) -> str:
        """One line: the corpus and how much of it was read."""
        counts = f"{counted(self.texts, 'text')}, {counted(self.tokens, 'token')}"
        return f"{visible(self.corpus.path.name)} ({counts})"

    @property
    def in_words(self) -> str:
        first, second = self.side_names
        most = self.heads[0]
        return f"of {first} with {second} on {self.source}: {most.id} first ({most.distance:.3f})"


@checked
def compare_corpus(
    first: Model,
    second: Model,
    corpus: str | Path,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    syntax: bool = True,
    parser: str | None = None,
    tokenizer: Any = None,
    device: str | None = None,
    device_map: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> CorpusComparison | None:
    """Compare every head of two models over the texts of a corpus, which is read as a stream.

    Of encoder-decoders the encoders alone are compared. Under torchrun the texts are split over the processes.

    Args:
        first: A, the model before; see :data:`attnviz.models.opening.Model`.
        second: B, of the same architecture, with as many layers and heads and the same tokenizer.
        corpus: texts or a treebank, as for :func:`attnviz.profile_heads`.
        text_column: of a table, likewise.
        pair_column: likewise.
        limit: texts that are read.
        batch_size: texts that the models read at once; it changes no result but by rounding.
        seed: of the bootstrap, and of which batches are verified.
        syntax: find relations in texts where spaCy and a pipeline are installed, for the roles of heads.
        parser: the spaCy pipeline to use; default an installed English one.
        tokenizer: of models in memory; or, of two models by name, the name of the one that both lack.
        device: as for :func:`attnviz.analyze`, for models by name.
        device_map: likewise, of one process.
        dtype: likewise.
        attention: likewise.
        unfinished: as for :func:`attnviz.profile_heads`.
        progress: callback with how many texts are done, and about how many there are.
        warn: callback for each text that was left out because the models cannot read it.

    Returns:
        the comparison; None in all processes but the first.

    Raises:
        UsageError: models of other shapes.
        TextError: a text that the models read as different tokens, with its line.
        OutputError: ``unfinished`` holds what a run with other settings has measured.
        CorpusError: the corpus cannot be read, or has no text to compare.
        VerificationError: the heads do not reproduce a model.
    """
    columns = Columns(text_column, pair_column)
    file = open_corpus(Path(corpus), columns, refused=("gap", "chats"))
    check_columns([file], columns)
    parse = find_parser([file], parser, syntax)
    process = this_process()
    first, second = (
        named_source(each, None) if isinstance(each, str | Path | None) else each for each in (first, second)
    )
    if not (isinstance(first, nn.Module) or isinstance(second, nn.Module)):
        check_shapes(first, second)
    options: ModelOptions = {"device": device, "device_map": device_map, "dtype": dtype, "attention": attention}
    a, b = (open_for(process, *each) for each in _with_openings((first, second), tokenizer, options))
    check_shapes(a, b)
    refuse_words(a, parser=parser, corpora=[file.path] if file.has_words_marked else [])
    parse = parse if a.architecture.has_words else None
    identity = {
        "attnviz": __version__, "A": a.name, "B": b.name, "weights of A": a.weights_sha256,
        "weights of B": b.weights_sha256, "dtypes": [str(a.dtype), str(b.dtype)], "seed": seed, "limit": limit,
        "corpus": file.identity, "parser": parse and parse.name,
    }  # fmt: skip
    settings = RunSettings(
        a.encoder, (file,), parse, limit, batch_size, seed, process,
        Unfinished(unfinished and own_file(unfinished, process), identity), with_suffix("", progress),
        report_once(warn),
    )  # fmt: skip
    with joined_processes(process):
        return _Run(settings, b.encoder).result()


def _with_openings(
    models: Sequence[Model], tokenizer: Any, options: ModelOptions
) -> Iterator[tuple[Model, ModelOptions]]:
    """How each model is opened: a tokenizer is of those of transformers, if any; other options of those by name."""
    of_transformers = [isinstance(model, nn.Module) for model in models]
    by_name = [not isinstance(model, nn.Module | Checkpoint) for model in models]
    for number, model in enumerate(models):
        opening = options.copy() if by_name[number] or not any(by_name) else ModelOptions()
        if of_transformers[number] or not any(of_transformers):
            opening["tokenizer"] = tokenizer
        yield model, opening


class _Run:
    """One pass over a corpus with both models; memory does not grow with it."""

    def __init__(self, settings: RunSettings, b: Checkpoint) -> None:
        self.settings, self.models = settings, (settings.checkpoint, b)
        shape, causal = (b.n_layers, b.n_heads), b.architecture.causal  # as of A
        self.attention = [SampledAttention(model, settings.seed) for model in self.models]
        self.roles = [
            (
                StatisticsTally(*shape, causal, windows=model.windows, learned_sinks=model.architecture.learned_sinks),
                RelationTally(*shape, causal),
            )
            for model in self.models
        ]
        self.tally = DifferenceTally(settings.checkpoint)
        parts: dict[str, Additive] = {"differences": self.tally}
        for side, attention, (statistics, relations) in zip("AB", self.attention, self.roles, strict=True):
            parts |= {f"attention {side}": attention, f"statistics {side}": statistics, f"relations {side}": relations}
        self.run = LongRun(settings, parts, self.count, lambda text: ready(text, settings.parse))

    def count(self, number: int, batch: Batch) -> None:  # noqa: ARG002 - there is one corpus
        """Compare A with B on a batch of the corpus; the patterns of A are kept until those of B come."""
        _check_same_tokens(self.models[1], batch)
        for part in split_batch(self.models[0], batch, _MOST_WEIGHTS // self.models[0].n_layers):
            numbers = [item.source.number for item in part.items]
            weights = text_weights(self.settings.seed, numbers)
            self.tally.begin(text_weights(self.settings.seed, numbers, SAMPLES), map(len, part.items))
            patterns_of_a: dict[int, Tensor] = {}
            self._read(part, weights, 0, patterns_of_a.__setitem__)

            def compare(
                layer: int, pattern: Tensor, of_a: dict[int, Tensor] = patterns_of_a, queries: Tensor = part.valid
            ) -> None:
                self.tally.add(layer, [(0, of_a.pop(layer), pattern)], queries)

            self._read(part, weights, 1, compare)

    def _read(self, batch: Batch, weights: Tensor, side: int, visit: Visit) -> None:
        """Run a batch through A or B, whose patterns the tallies of its roles read, too."""
        with counting(self.roles[side], batch, weights) as count:

            def read(layer: int, pattern: Tensor) -> None:
                count(layer, pattern)
                visit(layer, pattern)

            self.attention[side].run(batch, read)

    def result(self) -> CorpusComparison | None:
        """Measure, merge all processes and judge the heads; None in all processes but the first."""
        self.run.measure()
        if not self.run.gather():
            return None
        settings, (done,), (first, second) = self.settings, self.run.measured, self.attention
        parser = None if settings.parse is None else settings.parse.name
        ranked = self.tally.ranked()
        before, after = (_clearest_roles(*tallies, [head.id for head in ranked]) for tallies in self.roles)
        return CorpusComparison(
            *self.models, settings.corpora[0], done.texts, done.tokens, done.left_out, settings.seed,
            (first.verification, second.verification), first.texts_verified, parser,
            tuple(HeadChange(**vars(head), before=before[head.id], after=after[head.id]) for head in ranked),
            self.tally.largest, text_notes(settings, self.run.measured),
        )  # fmt: skip


def _clearest_roles(
    statistics: StatisticsTally, relations: RelationTally, heads: Sequence[HeadId]
) -> dict[HeadId, Role | None]:
    """Each head's role of the largest error reduction, judged without an untrained copy; None if none passes."""
    candidates = [*statistic_candidates(statistics), *syntax_candidates(relations.results())]
    passed = roles_by_head(judged_roles(candidates, {}), heads)
    return {head: next(iter(roles), None) for head, roles in passed.items()}


def _check_same_tokens(b: Checkpoint, batch: Batch) -> None:
    """Raise TextError if A and B tokenise the text differently."""
    others = encode(b, [item.source for item in batch.items])
    for item, other in zip(batch.items, others, strict=True):
        if (item.ids, item.sink, item.type_ids) != (other.ids, other.sink, other.type_ids):
            pairs = zip([*item.ids, None], [*other.ids, None], strict=False)
            position = next((index for index, (one, two) in enumerate(pairs) if one != two), 0)
            raise TextError(
                f"{item.source.place}: the models read the text differently, from token {position} on ({len(item)} and "
                f"{len(other)} tokens); expected models with the same tokenizer."
            )
