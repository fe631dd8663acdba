"""Measure the roles of every head on corpora."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack

import torch
from torch import Tensor

from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.commands.profile.examples import find_examples
from attnviz.errors import UsageError
from attnviz.judge import roles as judged
from attnviz.judge.roles import Candidate, Role
from attnviz.measures.chats import ChatScores
from attnviz.measures.names import NameCount
from attnviz.measures.patterns import REGISTRY, ROLES_ON_REPEATS
from attnviz.measures.relations import RelationCount
from attnviz.measures.repeats import RepeatScores
from attnviz.measures.tallies import StatisticsTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.models.opening import Model, refuse_words
from attnviz.options import CorpusOptions, checked
from attnviz.present.result import Result
from attnviz.profiles.examples import RoleExamples
from attnviz.progress import Progress, report_once, with_suffix
from attnviz.texts.long_runs import Unfinished, joined_processes, own_file, this_process
from attnviz.texts.reading import Corpus, find_parser, open_corpora
from attnviz.texts.runs import RunSettings, open_for, read_frequencies, text_notes
from attnviz.texts.tables import Columns
from attnviz.trace.checks import Verification
from attnviz.trace.contributions import why_not_linear
from attnviz.version import __version__
from attnviz.wording import counted, visible

PARTS = "", "untrained copy"
"""Parts of a profile's run: the model and its control."""

CONTROL_TEXTS = 500
"""Most texts of each corpus for the untrained copy."""

_OfHead = TypeVar("_OfHead", Role, RoleExamples)


@dataclass(frozen=True)
class CorpusCount:
    """How much of a corpus was measured."""

    corpus: Corpus
    texts: int
    tokens: int
    left_out: int


@dataclass(frozen=True, repr=False, eq=False)
class Profile(Result):
    """Statistics and roles of a model's heads on corpora; parts without data are None.

    Attributes:
        seed: of all random numbers.
        frequencies: name of the list that says which tokens are rare; None where the corpora do.
        verification, texts_verified: how closely the heads reproduce the model, and on how many texts.
        relations: syntactic relations, the most frequent first.
        gold: whether the trees are gold, not a parser's.
        control_texts: on how many texts an untrained copy of the model was measured.
        head_distances: mean Jensen-Shannon divergence of any two heads in nats, on queries of the verified
            texts, [n_all_heads, n_all_heads].
        roles: of every head, whether they hold or not.
        examples: of the roles that a head has, and of its best relation.
        why_no_copying: the reason why copying was not measured on sentences, or ''.
        text_notes: sentences on how the corpora were read.
        chats: attention between the roles of chats, and the lookback ratio of their answers.
    """

    command: ClassVar[str] = "profile"

    checkpoint: Checkpoint
    weights_sha256: str | None
    corpora: tuple[CorpusCount, ...]
    seed: int
    verification: Verification
    texts_verified: int
    statistics: StatisticsTally | None
    relations: tuple[RelationCount, ...] | None
    gold: bool
    coreference: NameCount | None
    control_texts: int | None
    repeats: RepeatScores | None
    head_distances: Tensor | None
    roles: tuple[Role, ...]
    examples: tuple[RoleExamples, ...] = ()
    why_no_copying: str = ""
    text_notes: tuple[str, ...] = ()
    chats: tuple[ChatScores, ...] = ()
    frequencies: str | None = None

    def roles_by_head(self) -> dict[HeadId, list[Role]]:
        """Roles that each head has, the clearest first; heads without roles included."""
        model = self.checkpoint
        return judged.roles_by_head(self.roles, select_heads((), model.kinds))

    def role(self, id: HeadId, name: str, direction: str = "") -> Role | None:
        """A head's verdict for a role, by default in its better direction; None where the role does not occur."""
        role = next((each for each in self.roles if (each.id, each.role) == (id, name)), None)
        if role is None or direction in ("", role.direction):
            return role
        candidates = [
            *judged.syntax_candidates(self.relations or ()), *judged.coreference_candidates(self.coreference)
        ]  # fmt: skip
        return judged.in_direction(self.roles, candidates, id, name, direction)

    @property
    def trees(self) -> str:
        """Source of the dependency trees."""
        return "gold trees" if self.gold else "a parser's trees, not gold"

    @checked
    def source(self, role: str = "", *more: str) -> str:
        """One line: the model, the corpora (of one role, or of ``statistics``; default all), and ``more``."""
        kinds = {"conllu", "txt", "table", "chats"}
        if not role:
            kinds |= {"gap", "repeats"}
        elif role == "coreference":
            kinds = {"gap"}
        elif role in ROLES_ON_REPEATS:
            kinds = {"repeats"}
        elif role.startswith("syntactic"):
            kinds = {"conllu"} if self.gold else {"txt", "table"}
        read = [
            f"{visible(count.corpus.path.name)} ({counted(count.texts, 'text')}, {counted(count.tokens, 'token')})"
            for count in self.corpora
            if count.corpus.kind in kinds
        ]
        if self.repeats is not None and "repeats" in kinds:
            read += [f"{n} × {what}" for what, n in self.repeats.sequences(role).items()]
        return " · ".join([self.checkpoint.short_name, *read, *more])

    def __repr__(self) -> str:
        having = counted(sum(map(bool, self.roles_by_head().values())), "head")
        return f"<Profile of {self.source()}: {having} with a role>"


@checked
def profile_heads(
    model: Model | None,
    paths: Sequence[str | Path],
    *,
    repeats: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    syntax: bool = True,
    parser: str | None = None,
    control: bool = True,
    examples: int = 8,
    frequencies: str | Path | None = None,
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **reading: Unpack[CorpusOptions],
) -> Profile | None:
    """Measure what every head does on corpora of sentences, of names and pronouns, and on repeats.

    Under torchrun the corpora are split over the processes; the first one returns the profile.

    Args:
        model: see :data:`attnviz.models.opening.Model`; of encoder-decoders the encoder.
        paths: texts (``.txt``, a text a line; a table ``.csv``, ``.tsv``, ``.jsonl``, ``.json``, ``.parquet``; a folder
            of the library datasets), treebanks (``.conllu``, gold trees), GAP ``.tsv`` (coreference), or chats (a table
            with ``messages``).
        repeats: also random tokens, repeated.
        limit: sentences, or rows, of each corpus that are read.
        batch_size: texts that the model reads at once.
        seed: of everything random: which batches are verified, the bootstrap, the repeats.
        syntax: parse texts where spaCy and a pipeline are installed, and no gold trees are given; find the
            subjects of GAP's passages.
        parser: the spaCy pipeline to use; default an installed English one.
        control: measure a freshly initialised copy of the model, too, on at most :data:`CONTROL_TEXTS` texts of each
            corpus; a role that is evidence passes only above it.
        examples: texts of each kind that are kept of a role: its best, and its clearest failures; 0 for none.
        frequencies: a file of words with their counts, by which tokens are rare; default the corpora.
        unfinished: a file in which to keep what was measured; the next call with the same settings goes on from
            there. Delete it when you have saved the profile.
        progress: callback for each corpus, how many of its texts are done, and about how many there are.
        warn: callback for each text that was left out because the model cannot read it.
        reading: see :class:`attnviz.options.CorpusOptions`; ``device_map`` is of one process, without ``control``.

    Returns:
        the profile; None in all processes but the first.

    Raises:
        UsageError: nothing to measure was given, or one corpus twice.
        OutputError: ``unfinished`` holds what a run with other settings has measured.
        CorpusError: a corpus cannot be read.
        VerificationError: the heads do not reproduce the model.
    """
    if not paths and not repeats:
        raise UsageError("nothing to measure: expected a corpus (.txt, .csv, .conllu or another), or --repeats.")
    process = this_process()
    columns, opening = Columns.taken(reading)
    corpora = open_corpora(paths, columns)
    parse = find_parser(corpora, parser, syntax)
    checkpoint = open_for(process, model, opening).encoder
    of_words = [each.path for each in corpora if each.has_words_marked]
    refuse_words(checkpoint, parser=parser, corpora=of_words)
    parse = parse if checkpoint.architecture.has_words else None
    if control and checkpoint.weight_devices:
        raise UsageError(
            "the untrained copy that roles are held against would be on one device; with --device-map (device_map=...) "
            "expected --no-control (control=False)."
        )
    weights = checkpoint.weights_sha256
    listed = read_frequencies(frequencies)
    tell = report_once(warn)

    def measured(part: str, of: Checkpoint, most: int | None) -> CorpusRun | None:
        """Run over corpora and merge all processes; None in all but the first."""
        identity = {
            "attnviz": __version__,
            "model": of.name,
            "weights": weights,
            "dtype": str(of.dtype),
            "seed": seed,
            "limit": most,
            "corpora": [corpus.identity for corpus in corpora],
            "parser": parse and parse.name,
            "frequencies": listed and listed.name,
            "plug-ins": list(REGISTRY.plugins),
        }
        settings = RunSettings(
            of, tuple(corpora), parse, most, batch_size, seed, process,
            Unfinished(None if unfinished is None else own_file(part_file(unfinished, part), process), identity),
            with_suffix(part, progress), tell, listed,
        )  # fmt: skip
        run = CorpusRun(settings)
        return run if run.measure(repeats=repeats) else None

    with joined_processes(process):
        run = measured(PARTS[0], checkpoint, limit)
        fresh = None
        if control:
            most = CONTROL_TEXTS if limit is None else min(limit, CONTROL_TEXTS)
            fresh = measured(PARTS[1], untrained_copy(checkpoint, seed), most)
    return None if run is None else _profile(run, fresh, weights, repeats, examples)


def untrained_copy(checkpoint: Checkpoint, seed: int) -> Checkpoint:
    """The same architecture, freshly initialised as transformers does, on the same device and in the same dtype."""
    old: Any = checkpoint.model
    head: Any = checkpoint.language_head
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = type(old)(checkpoint.config)
        if not why_not_linear(checkpoint):
            table = model.get_input_embeddings().weight
            head = copy.deepcopy(head, {id(old.get_input_embeddings().weight): table})  # tied where the model's is
            for own in (each for each in head.parameters() if each is not table):
                own.data = torch.randn(own.shape)  # of any size, since signs alone are measured
    for module in (model, head):
        if module is not None:
            module.to(checkpoint.device, checkpoint.dtype).eval()
    return replace(checkpoint, model=model, language_head=head)


def part_file(unfinished: Path, part: str) -> Path:
    """The file of one of the :data:`PARTS` of an unfinished profile; for the first, ``unfinished`` itself."""
    return unfinished.with_name(f"{unfinished.name}-{part.split(maxsplit=1)[0]}") if part else unfinished


def _counts(run: CorpusRun) -> tuple[CorpusCount, ...]:
    corpora = zip(run.settings.corpora, run.measured, strict=True)
    return tuple(CorpusCount(corpus, done.texts, done.tokens, done.left_out) for corpus, done in corpora)


def _candidates(run: CorpusRun | None, repeats: bool) -> Iterator[Candidate]:
    if run is None:
        return
    if run.sentences:
        yield from judged.statistic_candidates(run.statistics)
        if run.settings.checkpoint.architecture.has_words:
            yield from judged.semantic_candidates(run.meanings)
        yield from judged.writing_candidates(run.writing)
        yield from judged.rare_candidates(run.pointing)
    if repeats:
        yield from judged.repeat_candidates(run.repeats.results(), previous=not run.sentences)
    yield from judged.syntax_candidates(run.relations.results())
    yield from judged.coreference_candidates(run.names.results())


def _profile(
    run: CorpusRun,
    fresh: CorpusRun | None,
    weights: str | None,
    repeats: bool,
    examples: int,
) -> Profile:
    checkpoint = run.settings.checkpoint
    roles = judged.judged_roles(_candidates(run, repeats), judged.untrained_scores(_candidates(fresh, repeats)))
    return Profile(
        checkpoint, weights, _counts(run), run.settings.seed, run.attention.verification, run.attention.texts_verified,
        run.statistics if run.sentences else None,
        tuple(replace(each, layers=checkpoint.layers) for each in run.relations.results()) or None, run.gold,
        run.names.results(), None if fresh is None else sum(done.texts for done in fresh.measured),
        run.repeats.results() if repeats else None, run.distances.results() if run.sentences else None,
        _renumbered(roles, checkpoint),
        _renumbered(find_examples(run, roles, examples), checkpoint),
        run.writing.why_no_copying if run.sentences else "", text_notes(run.settings, run.measured),
        tuple(run.chats.results()), run.settings.frequencies and run.settings.frequencies.name,
    )  # fmt: skip


def _renumbered(of_heads: Iterable[_OfHead], checkpoint: Checkpoint) -> tuple[_OfHead, ...]:
    """Renumber heads from a measured encoder to the whole model."""
    return tuple(replace(each, id=HeadId(checkpoint.layers[each.id.layer], each.id.head)) for each in of_heads)
