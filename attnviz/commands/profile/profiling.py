"""What each head of a model does, measured on corpora: the whole chain, for the command line and for Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnviz.attention.verify import Verification
from attnviz.commands.profile.head_distances import HeadDistanceTally
from attnviz.commands.profile.meanings import MeaningTally
from attnviz.commands.profile.measuring import Measuring
from attnviz.commands.profile.offsets import OffsetTally
from attnviz.commands.profile.repeats import SEQUENCES, RepeatScores, RepeatTally
from attnviz.commands.profile.roles import (
    Role,
    coreference_roles,
    offset_roles,
    repeat_roles,
    semantic_roles,
    statistic_roles,
    syntax_roles,
)
from attnviz.commands.profile.tallies import NameTally, RelationCount, RelationTally, StatisticsTally, Tally
from attnviz.corpora.batches import Text
from attnviz.corpora.processes import Process, gathered, joined_processes, own_file, this_process
from attnviz.corpora.reading import Corpus, open_corpus
from attnviz.corpora.resuming import ChangedCorpusError, Unfinished
from attnviz.corpora.texts import Parser, find_parser, numbered_texts, ready
from attnviz.errors import CorpusError, UsageError
from attnviz.model.checkpoint import Checkpoint, load_checkpoint
from attnviz.model.devices import resolve_device, resolve_dtype
from attnviz.model.sources import Source, find_checkpoint, weights_sha256
from attnviz.progress import Progress
from attnviz.version import __version__

__all__ = [
    "CorpusCount",
    "Profile",
    "profile_heads",
]

SENTENCES, EXAMPLES, SAMPLED = ("statistics", "offsets", "relations", "meanings"), ("names",), ("distances",)
"""Names of the tallies that count sentences, GAP's examples, and the verified batches of sentences only."""


@dataclass(frozen=True)
class CorpusCount:
    """A corpus, and how much of it was measured."""

    corpus: Corpus
    texts: int
    tokens: int
    left_out: int


@dataclass(frozen=True)
class Profile:
    """What the heads of a model do on the given corpora; parts that these cannot give are None.

    Attributes:
        checkpoint: the model.
        weights_sha256: of its weights, hexadecimal; None of a model that was already loaded.
        corpora: what was measured, and how much of it.
        seed: of everything random.
        verification: how closely the verified heads reproduce the model.
        texts_verified: on how many texts.
        statistics: sums over all sentences.
        relations: syntactic relations, the most frequent first.
        gold: whether the trees are gold, not a parser's.
        coreference: of GAP's examples.
        repeats: of random tokens, repeated.
        head_distances: mean Jensen-Shannon divergence of any two heads in nats, on the verified texts,
            [n_all_heads, n_all_heads].
        queries_compared: over how many queries that is.
        roles: of every head, whether they pass or not.
    """

    checkpoint: Checkpoint
    weights_sha256: str | None
    corpora: tuple[CorpusCount, ...]
    seed: int
    verification: Verification
    texts_verified: int
    statistics: StatisticsTally | None
    relations: tuple[RelationCount, ...] | None
    gold: bool
    coreference: NameTally | None
    repeats: RepeatScores | None
    head_distances: Tensor | None
    queries_compared: int
    roles: tuple[Role, ...]


def profile_heads(
    model: str | Path | Source | Checkpoint,
    paths: Sequence[str | Path],
    *,
    repeats: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    syntax: bool = True,
    parser: str | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Profile | None:
    """Measure what every head does on corpora of sentences, of names and pronouns, and on repeats.

    Under torchrun the corpora are split over the processes; the first one returns the profile.

    Args:
        model: a built-in name, folder or hub id; a Source found before; or a Checkpoint.
        paths: ``.conllu`` (gold trees), ``.txt`` (a sentence a line), GAP ``.tsv`` (coreference).
        repeats: also random tokens, repeated.
        limit: sentences, or rows, of each corpus that are read.
        batch_size: texts that the model reads at once; it changes no result but by rounding.
        seed: of everything random: which batches are verified, the bootstrap, the repeats.
        syntax: parse ``.txt`` files where spaCy and a pipeline are installed, and no gold trees are given.
        parser: the spaCy pipeline to use; default an installed English one.
        revision: branch, tag or commit of a hub id.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N``, ``mps``; of a model by name.
        dtype: ``float32``, ``float64``, ``bfloat16``, ``float16``; of a model by name.
        unfinished: a file in which to keep what was measured; the next call with the same settings goes on from
            there. Delete it when you have saved the profile.
        progress: told of each corpus, how many of its texts are done, and about how many there are.
        warn: told of each text that was left out because the model cannot read it.

    Returns:
        the profile; None in all processes but the first.

    Raises:
        UsageError: nothing to measure was given, or one corpus twice.
        OutputError: ``unfinished`` holds what a run with other settings has measured.
        CorpusError: a corpus cannot be read; what stands before the place is kept in ``unfinished``.
        VerificationError: the heads do not reproduce the model.
    """
    if not paths and not repeats:
        raise UsageError("nothing to measure: expected a corpus (.conllu, .txt or GAP .tsv), or --repeats.")
    process = this_process()
    corpora = _different([open_corpus(Path(path)) for path in paths])
    parse = find_parser(corpora, parser) if syntax else None
    checkpoint, weights = _checkpoint(model, revision, device, dtype, process)
    settings = {
        "attnviz": __version__, "model": checkpoint.name, "weights": weights, "dtype": str(checkpoint.dtype),
        "seed": seed, "limit": limit, "corpora": [str(corpus.path) for corpus in corpora],
        "parser": None if parse is None else parse.name,
    }  # fmt: skip
    run = _Run(
        checkpoint, corpora, parse, limit, batch_size, seed, process,
        Unfinished(None if unfinished is None else own_file(unfinished, process), settings),
        progress or (lambda *_: None), warn or (lambda _: None),
    )  # fmt: skip
    with joined_processes(process):
        measuring = run.measured()
        measuring.keep()
        repeated = run.repeated(measuring) if repeats else None
        states = gathered(process, (measuring.state(), None if repeated is None else repeated.state()))
    if not process.first:
        return None
    for state, scores in states[1:]:
        measuring.absorb(state)
        if repeated is not None:
            repeated.absorb(scores)
    return _profile(run, weights, measuring, None if repeated is None else repeated.results())


@dataclass(frozen=True)
class _Run:
    """What is to be measured, and how."""

    checkpoint: Checkpoint
    corpora: list[Corpus]
    parse: Parser | None
    limit: int | None
    batch_size: int
    seed: int
    process: Process
    unfinished: Unfinished
    progress: Progress
    warn: Callable[[str], None]

    def measured(self) -> Measuring:
        """All corpora, from where an earlier run stopped if their texts are still the same."""
        state = self.unfinished.load()
        if state is not None:
            done = sum(each["texts"] for each in state["measured"])
            self.warn(
                f"going on after {done} texts that an earlier run has measured; "
                f"to begin anew, delete {self.unfinished.path}"
            )
            try:
                return self._measured(state)
            except ChangedCorpusError:
                self.warn("a corpus has changed where it was measured before: beginning anew")
        return self._measured(None)

    def _measured(self, state: dict[str, Any] | None) -> Measuring:
        measuring = self._new()
        if state is not None:
            measuring.take_up(state)
        for number, corpus in enumerate(self.corpora):
            texts = numbered_texts(corpus, self.limit)
            if corpus.kind == "gap":
                measuring.measure(number, texts, EXAMPLES, self._seen)
            else:
                measuring.measure(number, texts, SENTENCES, lambda text: ready(text, self.parse), SAMPLED)
        return measuring

    def _seen(self, text: Text) -> Text | None:
        """An example of GAP; None where a causal model cannot look from the pronoun to both names."""
        pronoun, *names = text.spans
        ahead = any(name[1] > pronoun[0] for name in names)
        return None if ahead and self.checkpoint.architecture.causal else text

    def _new(self) -> Measuring:
        shape = self.checkpoint.n_layers, self.checkpoint.n_heads
        tallies: dict[str, Tally] = {
            "statistics": StatisticsTally(*shape, self.checkpoint.architecture.causal),
            "offsets": OffsetTally(*shape, self.checkpoint.architecture.causal),
            "relations": RelationTally(*shape),
            "meanings": MeaningTally(self.checkpoint),
            "names": NameTally(*shape, self.checkpoint.architecture.causal),
            "distances": HeadDistanceTally(*shape),
        }

        def tell(number: int, done: int) -> None:
            corpus = self.corpora[number]
            total = corpus.size if self.limit is None else min(self.limit, corpus.size)
            self.progress(corpus.path.name, done * self.process.count, total)

        return Measuring(
            self.checkpoint,
            tallies,
            n_corpora=len(self.corpora),
            process=self.process,
            unfinished=self.unfinished,
            batch_size=self.batch_size,
            seed=self.seed,
            tell=tell,
            warn=self.warn,
        )

    def repeated(self, measuring: Measuring) -> RepeatTally:
        """This process's share of the random sequences."""
        tally = RepeatTally(self.checkpoint, self.seed)
        own = [number for number in range(SEQUENCES) if self.process.owns(number)]
        tally.measure(measuring.attention, own, self.batch_size, lambda done: self.progress("repeats", done, len(own)))
        return tally


def _different(corpora: list[Corpus]) -> list[Corpus]:
    """The corpora, if none is there twice: its texts would count twice, and every interval would be too narrow."""
    for place, corpus in enumerate(corpora):
        for other in corpora[:place]:
            if corpus.sha256 == other.sha256:
                raise UsageError(
                    f"expected different corpora, found the same content twice: {other.path}, {corpus.path}."
                )
    return corpora


def _profile(run: _Run, weights: str | None, measuring: Measuring, repeated: RepeatScores | None) -> Profile:
    """From sums to verdicts."""
    kinds = {corpus.kind for corpus in run.corpora}
    counts = [
        CorpusCount(corpus, found.texts, found.tokens, found.left_out)
        for corpus, found in zip(run.corpora, measuring.measured, strict=True)
    ]
    for count in counts:
        if not count.texts:
            raise CorpusError(
                f"no text of {count.corpus.path} could be measured: all {count.left_out} are too long, too short, or "
                "not within what the model can see."
            )
    tallies: dict[str, Any] = dict(measuring.tallies)
    relations = tuple(tallies["relations"].results())
    sentences, names = bool(kinds - {"gap"}), tallies["names"] if "gap" in kinds else None
    roles: list[Role] = []
    if sentences:
        roles += [*statistic_roles(tallies["statistics"]), *offset_roles(tallies["offsets"])]
        roles += semantic_roles(tallies["meanings"])
    roles += repeat_roles(repeated, previous=not sentences) if repeated is not None else ()
    roles += syntax_roles(list(relations))
    roles += coreference_roles(names) if names is not None else ()
    return Profile(
        checkpoint=run.checkpoint,
        weights_sha256=weights,
        corpora=tuple(counts),
        seed=run.seed,
        verification=measuring.attention.verification,
        texts_verified=measuring.attention.texts_verified,
        statistics=tallies["statistics"] if sentences else None,
        relations=relations or None,
        gold="conllu" in kinds,
        coreference=names,
        repeats=repeated,
        head_distances=tallies["distances"].results() if sentences else None,
        queries_compared=tallies["distances"].n_queries,
        roles=tuple(roles),
    )


def _checkpoint(
    model: str | Path | Source | Checkpoint, revision: str | None, device: str, dtype: str, process: Process
) -> tuple[Checkpoint, str | None]:
    if isinstance(model, Checkpoint):
        return model, None
    source = model if isinstance(model, Source) else find_checkpoint(str(model), revision)
    place = resolve_device(device)
    if place == torch.device("cuda") and process.count > 1:
        place = torch.device("cuda", process.local_rank % torch.cuda.device_count())
    return load_checkpoint(source, place, resolve_dtype(dtype, place)), weights_sha256(source)
