"""Measure the roles of every head on corpora."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack, get_args

import torch
from torch import Tensor

from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.commands.profile.examples import TextWeights, find_examples, sampled_weights
from attnviz.errors import UsageError
from attnviz.inputs.frequencies import read_frequencies
from attnviz.inputs.reading import find_parser, open_corpora
from attnviz.inputs.refusals import refuse
from attnviz.inputs.tables import Columns
from attnviz.judge import roles as judged
from attnviz.judge.roles import Role
from attnviz.measures.chats import ChatScores
from attnviz.measures.names import NameCount
from attnviz.measures.patterns import PATTERNS, ROLES_ON_REPEATS
from attnviz.measures.relations import RelationCount
from attnviz.measures.repeats import Needles, RepeatScores
from attnviz.measures.statistics import STATISTICS
from attnviz.measures.tallies import StatisticsTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.models.opening import Model
from attnviz.options import CorpusOptions, ExportFormat, checked
from attnviz.present.result import Result
from attnviz.profiles.examples import RoleExamples
from attnviz.profiles.parts import SYNTACTIC
from attnviz.profiles.store import JudgedRelation
from attnviz.progress import Progress, report_once, with_suffix
from attnviz.run.checks import Verification
from attnviz.run.contributions import why_not_linear
from attnviz.run.corpus import CorpusLoop, Measured, open_for
from attnviz.run.processes import joined_processes, this_process
from attnviz.wording import counted, visible

DUO_ATTENTION, HEADVIS = get_args(ExportFormat)
PARTS = "", "untrained copy"  # parts of a profile's run: the model and its control
CONTROL_TEXTS = 500  # most texts of each corpus for the untrained copy
_OfHead = TypeVar("_OfHead", Role, RoleExamples)


@dataclass(frozen=True, repr=False, eq=False)
class Profile(Result):
    """Statistics and roles of a model's heads on corpora; parts without data are None."""

    command: ClassVar[str] = "profile"

    checkpoint: Checkpoint
    weights_sha256: str | None
    corpora: tuple[Measured, ...]
    seed: int  # of all random numbers
    verification: Verification
    texts_verified: int
    statistics: StatisticsTally | None
    relations: tuple[RelationCount, ...] | None  # the most frequent first
    gold: bool  # whether the trees are gold, not a parser's
    coreference: NameCount | None
    control_texts: int | None  # on how many texts an untrained copy of the model was measured
    repeats: RepeatScores | None
    head_distances: Tensor | None  # mean Jensen-Shannon divergence of any two heads in nats, on verified texts
    roles: tuple[Role, ...]  # of every head, whether they hold or not
    examples: tuple[RoleExamples, ...] = ()  # of the roles that a head has, and of its best relation
    why_no_copying: str = ""  # why copying was not measured on sentences
    text_notes: tuple[str, ...] = ()  # on how the corpora were read
    chats: tuple[ChatScores, ...] = ()  # attention between the roles of chats, and the lookback ratio of their answers
    frequencies: str | None = None  # the list that says which tokens are rare; None where the corpora do
    texts: Sequence[TextWeights] = ()  # a random sample, for examples across the distribution
    export: str | None = None  # the tool for which files are written, too

    def roles_by_head(self) -> dict[HeadId, list[Role]]:
        """Roles that each head has, the clearest first; heads without roles included."""
        return judged.roles_by_head(self.roles, select_heads((), self.checkpoint.kinds))

    def role(self, id: HeadId, name: str, direction: str = "") -> Role | None:
        """A head's verdict for a role, by default in its better direction; None where the role does not occur."""
        role = next((role for role in self.roles if (role.id, role.role) == (id, name)), None)
        if role is None or direction in ("", role.direction):
            return role
        candidates = [*judged.syntax_candidates(self.relations or ())]
        candidates += judged.coreference_candidates(self.coreference)
        return judged.in_direction(self.roles, candidates, id, name, direction)

    @cached_property
    def judged_relations(self) -> list[JudgedRelation]:
        """The relations with the verdicts of their best heads."""
        judged_ones = []
        for relation in self.relations or ():
            id, direction, _ = relation.best
            role = self.role(id, f"{SYNTACTIC}{relation.relation}", direction)
            assert role is not None  # every relation has one
            judged_ones.append(JudgedRelation(relation.relation, relation.n, relation.offset, role))
        return judged_ones

    @property
    def trees(self) -> str:
        return trees_in_words(self.gold)

    @checked
    def source(self, role: str = "", *more: str) -> str:
        """One line: the model, the corpora (of one role, or of ``statistics``; default all), and ``more``."""
        kinds = {count.corpus.kind for count in self.corpora} - {"gap"}
        if not role:
            kinds |= {"gap", "repeats"}
        elif role == "coreference":
            kinds = {"gap"}
        elif role in ROLES_ON_REPEATS:
            kinds = {"repeats"}
        elif role.startswith("syntactic"):
            kinds = {"conllu"} if self.gold else kinds - {"chats", "conllu"}
        read = [
            f"{visible(count.corpus.path.name)} ({counted(count.texts, 'text')}, {counted(count.tokens, 'token')})"
            for count in self.corpora
            if count.corpus.kind in kinds
        ]
        if self.repeats is not None and "repeats" in kinds:
            read += [f"{n} × {what}" for what, n in self.repeats.sequences(role).items()]
        return " · ".join([self.checkpoint.short_name, *read, *more])

    @property
    def in_words(self) -> str:
        having = counted(sum(map(bool, self.roles_by_head().values())), "head")
        return f"of {self.source()}: {having} with a role"


def trees_in_words(gold: bool) -> str:
    """Where the trees of relations are from."""
    return "gold trees" if gold else "a parser's trees, not gold"


@checked
def profile_heads(
    model: Model | None,
    texts: Any = (),
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
    export: ExportFormat | None = None,
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **reading: Unpack[CorpusOptions],
) -> Profile | None:
    """Measure what every head does on corpora of sentences, of names and pronouns, and on repeats.

    Arguments are the options of ``attnviz profile --help``. ``texts`` are files or what is in memory, as of
    :func:`attnviz.inputs.reading.open_corpora`: texts (``.txt``, a text a line; a table ``.csv``, ``.tsv``, ``.jsonl``,
    ``.json``, ``.parquet``; a folder of the library datasets), treebanks (``.conllu``, gold trees), GAP ``.tsv``
    (coreference), or chats (a table with ``messages``). Of encoder-decoders the encoder is measured. With ``control`` a
    freshly initialised copy of the model is measured, too, on at most :data:`CONTROL_TEXTS` texts of each corpus: a
    role that is evidence passes only above it.

    ``unfinished`` is a file in which to keep what was measured: the next call with the same settings goes on from
    there; delete it when you have saved the profile. ``progress`` is called for each corpus with how many of its texts
    are done, and about how many there are; ``warn`` for each text that is left out. Under torchrun the corpora are
    split over the processes; the first one returns the profile, the others None.

    Raises:
        UsageError: nothing to measure was given, or one corpus twice.
        OutputError: ``unfinished`` holds what a run with other settings has measured.
        CorpusError: a corpus cannot be read.
        VerificationError: the heads do not reproduce the model.
    """
    process = this_process()
    columns, opening = Columns.taken(reading)
    corpora = open_corpora(texts, columns)
    if not corpora and not repeats:
        raise UsageError(
            "nothing to measure: expected a corpus (.txt, .csv, .conllu or another), or --repeats (repeats=True)."
        )
    if export and not {DUO_ATTENTION: repeats, HEADVIS: corpora}[export]:
        raise UsageError(f"expected --repeats with --export {DUO_ATTENTION}, and a corpus with --export {HEADVIS}.")
    parse = find_parser(corpora, parser, syntax)
    checkpoint = open_for(process, model, opening).encoder
    of_words = [corpus.path for corpus in corpora if corpus.has_words_marked]
    refuse({"parser": parser, "treebanks": of_words}, checkpoint)
    parse = parse if checkpoint.architecture.has_words else None
    if export == DUO_ATTENTION:
        refuse_list(checkpoint)
    if control and checkpoint.weight_devices:
        raise UsageError(
            "the untrained copy that roles are held against would be on one device; with --device-map (device_map=...) "
            "expected --no-control (control=False)."
        )
    weights = checkpoint.weights_sha256
    listed = read_frequencies(frequencies)
    warn_once = report_once(warn)

    def measured(part: str, model: Checkpoint, most: int | None) -> CorpusRun | None:
        """Run over corpora and merge all processes; None in all but the first."""
        loop = CorpusLoop(
            checkpoint=model,
            corpora=corpora,
            limit=most,
            batch_size=batch_size,
            seed=seed,
            process=process,
            unfinished=unfinished and part_file(unfinished, part),
            identity={
                "model": model.name,
                "weights": weights,
                "dtype": str(model.dtype),
                "parser": parse and parse.name,
                "frequencies": listed and listed.name,
                "plug-ins": [*PATTERNS.plugins, *STATISTICS.plugins],
            },
            progress=with_suffix(part, progress),
            warn=warn_once,
        )
        run = CorpusRun(loop, parse, listed, repeats=repeats)
        return run if run.measure() else None

    with joined_processes(process):
        run = measured(PARTS[0], checkpoint, limit)
        fresh = None
        if control:
            most = CONTROL_TEXTS if limit is None else min(limit, CONTROL_TEXTS)
            fresh = measured(PARTS[1], untrained_copy(checkpoint, seed), most)
    if run is None:
        return None
    untrained = {} if fresh is None else judged.untrained_scores(fresh.candidates())
    roles = judged.judged_roles(run.candidates(), untrained)
    sentences = run.sentences
    return Profile(
        checkpoint=checkpoint,
        weights_sha256=weights,
        corpora=tuple(run.loop.measured),
        seed=seed,
        verification=run.attention.verification,
        texts_verified=run.attention.texts_verified,
        statistics=run.statistics if sentences else None,
        relations=tuple(replace(count, layers=checkpoint.layers) for count in run.relations.results()) or None,
        gold=run.gold,
        coreference=run.names.results(),
        control_texts=None if fresh is None else sum(done.texts for done in fresh.loop.measured),
        repeats=run.repeats.results() if repeats else None,
        head_distances=run.distances.results() if sentences else None,
        roles=_renumbered(roles, checkpoint),
        examples=_renumbered(find_examples(run, roles, examples), checkpoint),
        why_no_copying=run.writing.why_no_copying if sentences else "",
        text_notes=(*run.loop.text_notes(), *([f"Rare tokens are those of {visible(listed.name)}."] if listed else [])),
        chats=tuple(run.chats.results()),
        frequencies=listed and listed.name,
        texts=sampled_weights(run) if examples or export == HEADVIS else (),
        export=export,
    )


def refuse_list(checkpoint: Checkpoint) -> None:
    """Raise UsageError for a model of which there is no list of retrieval heads."""
    counts = {checkpoint.architecture.head_counts(checkpoint.config, layer) for layer in checkpoint.layers}
    if checkpoint.other_layers or len(counts) > 1 or not Needles(checkpoint, 0, 1).measurable:
        raise UsageError(
            f"a list for {DUO_ATTENTION} is of a decoder all of whose layers attend, with as many KV heads each: "
            f"{checkpoint.name} is none, or reads too few tokens."
        )


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
            for parameter in head.parameters():
                if parameter is not table:
                    parameter.data = torch.randn(parameter.shape)  # of any size, since signs alone are measured
    for module in (model, head):
        if module is not None:
            module.to(checkpoint.device, checkpoint.dtype).eval()
    return replace(checkpoint, model=model, language_head=head)


def part_file(unfinished: Path, part: str) -> Path:
    """The file of one of the :data:`PARTS` of an unfinished profile; for the first, ``unfinished`` itself."""
    return unfinished.with_name(f"{unfinished.name}-{part.split(maxsplit=1)[0]}") if part else unfinished


def _renumbered(of_heads: Iterable[_OfHead], checkpoint: Checkpoint) -> tuple[_OfHead, ...]:
    """Renumber heads from a measured encoder to the whole model."""
    return tuple(replace(row, id=HeadId(checkpoint.layers[row.id.layer], row.id.head)) for row in of_heads)
