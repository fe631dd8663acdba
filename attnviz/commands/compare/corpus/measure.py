"""Compare every head of two models over a corpus.

The distance of a head is the mean over texts, with an interval from a bootstrap over them.
"""

from collections.abc import Callable
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

# Attention weights of all layers that are kept at once, but for a single text: a quarter of a gigabyte in float32.
_MOST_WEIGHTS = 1 << 26


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadChange(Difference):
    """Difference of one head over a corpus."""

    before: Role | None  # its clearest role in A; None if it has none
    after: Role | None  # likewise in B

    @property
    def role_changed(self) -> bool:
        return getattr(self.before, "role", None) != getattr(self.after, "role", None)


@dataclass(frozen=True, repr=False, eq=False)
class CorpusComparison(Result, OfHeads[HeadChange]):
    """What :func:`compare_corpus` measured; both models are verified on a sample of the texts."""

    command: ClassVar[str] = "compare.corpus"
    noun: ClassVar[str] = "Comparison"

    first: Checkpoint  # A
    second: Checkpoint  # B
    corpus: Corpus
    texts: int  # that were compared
    tokens: int
    left_out: int  # texts
    seed: int
    verifications: tuple[Verification, Verification]  # of A and of B
    texts_verified: int
    parser: str | None  # of a corpus without trees; None without one
    heads: tuple[HeadChange, ...]  # one entry a head, the most different first
    # mean over texts of the largest possible distance: in a causal model the first token of a text sees itself alone
    # and cannot differ
    largest: float
    text_notes: tuple[str, ...] = ()  # on how A reads the corpus

    @property
    def reading_notes(self) -> list[str]:
        return list(dict.fromkeys([*self.first.notes, *self.second.notes, *self.text_notes]))

    @property
    def checkpoint(self) -> Checkpoint:  # type: ignore[override] # of the heads' numbers
        return self.first

    @property
    def side_names(self) -> tuple[str, str]:
        return model_names(self.first, self.second)

    @property
    def judged(self) -> bool:
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

    A is the model before, B one of the same architecture, with as many layers and heads and the same tokenizer; see
    :data:`attnviz.models.opening.Model`. Of encoder-decoders the encoders alone are compared. ``tokenizer`` is for
    models in memory; or, of two models by name, the name of the one that both lack. ``device``, ``device_map``,
    ``dtype`` and ``attention`` are for models by name, as for :func:`attnviz.analyze`; all other arguments are as for
    :func:`attnviz.profile_heads`. Under torchrun the texts are split over the processes; in all but the first the
    result is None.

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
    first, second = models = [
        named_source(model, None) if isinstance(model, str | Path | None) else model for model in (first, second)
    ]
    if not (isinstance(first, nn.Module) or isinstance(second, nn.Module)):
        check_shapes(first, second)
    options: ModelOptions = {"device": device, "device_map": device_map, "dtype": dtype, "attention": attention}
    # a tokenizer is for models of transformers, if there are any; other options are for those by name
    of_transformers = [isinstance(model, nn.Module) for model in models]
    by_name = [not isinstance(model, nn.Module | Checkpoint) for model in models]
    opened = []
    for model, is_of_transformers, is_by_name in zip(models, of_transformers, by_name, strict=True):
        opening = options.copy() if is_by_name or not any(by_name) else ModelOptions()
        if is_of_transformers or not any(of_transformers):
            opening["tokenizer"] = tokenizer
        opened.append(open_for(process, model, opening))
    a, b = opened
    check_shapes(a, b)
    refuse_words(a, parser=parser, corpora=[file.path] if file.has_words_marked else [])
    parse = parse if a.architecture.has_words else None
    identity = {
        "attnviz": __version__,
        "A": a.name,
        "B": b.name,
        "weights of A": a.weights_sha256,
        "weights of B": b.weights_sha256,
        "dtypes": [str(a.dtype), str(b.dtype)],
        "seed": seed,
        "limit": limit,
        "corpus": file.identity,
        "parser": parse and parse.name,
    }
    settings = RunSettings(
        checkpoint=a.encoder,
        corpora=(file,),
        parse=parse,
        limit=limit,
        batch_size=batch_size,
        seed=seed,
        process=process,
        unfinished=Unfinished(unfinished and own_file(unfinished, process), identity),
        progress=with_suffix("", progress),
        warn=report_once(warn),
    )
    with joined_processes(process):
        return _Run(settings, b.encoder).result()


class _Run:
    """One pass over a corpus with both models; memory does not grow with it."""

    def __init__(self, settings: RunSettings, b: Checkpoint) -> None:
        self.settings = settings
        self.models = (settings.checkpoint, b)
        shape = (b.n_layers, b.n_heads)
        causal = b.architecture.causal  # as of A
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
        """Compare A with B on a batch of the corpus; TextError where they tokenise a text differently."""
        others = encode(self.models[1], [item.source for item in batch.items])
        for item, other in zip(batch.items, others, strict=True):
            if (item.ids, item.sink, item.type_ids) != (other.ids, other.sink, other.type_ids):
                pairs = zip([*item.ids, None], [*other.ids, None], strict=False)
                position = next((index for index, (one, two) in enumerate(pairs) if one != two), 0)
                raise TextError(
                    f"{item.source.place}: the models read the text differently, from token {position} on "
                    f"({len(item)} and {len(other)} tokens); expected models with the same tokenizer."
                )
        for part in split_batch(self.models[0], batch, _MOST_WEIGHTS // self.models[0].n_layers):
            numbers = [item.source.number for item in part.items]
            of_a = dict[int, Tensor]()
            self.tally.begin(text_weights(self.settings.seed, numbers, SAMPLES), map(len, part.items))
            for side in range(2):
                self._read(part, text_weights(self.settings.seed, numbers), side, of_a)

    def _read(self, part: Batch, weights: Tensor, side: int, of_a: dict[int, Tensor]) -> None:
        """Run texts through A, whose patterns are kept, or through B."""
        with counting(self.roles[side], part, weights) as count:

            def on_pattern(layer: int, pattern: Tensor) -> None:
                count(layer, pattern)
                if side == 0:
                    of_a[layer] = pattern
                else:
                    self.tally.add(layer, [(0, of_a.pop(layer), pattern)], part.valid)

            self.attention[side].run(part, on_pattern)

    def result(self) -> CorpusComparison | None:
        """Measure, merge all processes and judge the heads; None in all processes but the first."""
        self.run.measure()
        if not self.run.gather():
            return None
        settings, (done,), (first, second) = self.settings, self.run.measured, self.attention
        ranked = self.tally.ranked()
        ids = [head.id for head in ranked]
        roles = []
        for statistics, relations in self.roles:  # judged without an untrained copy, the largest error reduction first
            candidates = [*statistic_candidates(statistics), *syntax_candidates(relations.results())]
            passed = roles_by_head(judged_roles(candidates, {}), ids)
            roles.append({id: next(iter(of_head), None) for id, of_head in passed.items()})
        return CorpusComparison(
            first=self.models[0],
            second=self.models[1],
            corpus=settings.corpora[0],
            texts=done.texts,
            tokens=done.tokens,
            left_out=done.left_out,
            seed=settings.seed,
            verifications=(first.verification, second.verification),
            texts_verified=first.texts_verified,
            parser=None if settings.parse is None else settings.parse.name,
            heads=tuple(HeadChange(**vars(head), before=roles[0][head.id], after=roles[1][head.id]) for head in ranked),
            largest=self.tally.largest,
            text_notes=text_notes(settings, self.run.measured),
        )
