"""Hold claims on heads against what attnviz measures: each profile, analysis, comparison and ablation once for all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from attnviz.analysis.result import Analysis
from attnviz.arguments import is_there
from attnviz.commands.ablate import Ablation, ablate
from attnviz.commands.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    VERDICTS,
    CheckedClaim,
    Claim,
    HeadList,
    decided,
    placed,
)
from attnviz.commands.compare import Comparison, compare
from attnviz.commands.compare_corpus import CorpusComparison, compare_corpus
from attnviz.commands.heads.measure import analyze
from attnviz.commands.papers.table import OF_RUN, OF_TEXTS, profiled
from attnviz.commands.profile.exports import retrieval_scores
from attnviz.commands.profile.measure import Profile
from attnviz.errors import UsageError
from attnviz.inputs.frequencies import read_frequencies
from attnviz.inputs.reading import open_corpus, read_texts
from attnviz.inputs.sources import read_sources
from attnviz.inputs.tables import IN_MEMORY, Columns
from attnviz.inputs.text import tokenize
from attnviz.judge.roles import Role
from attnviz.judge.rules import RETRIEVED
from attnviz.judge.verdicts import BOTH, ENOUGH, UNNAMED
from attnviz.measures.patterns import RETRIEVAL, ROLES_ON_REPEATS
from attnviz.measures.predictions import metrics_of, prediction_kind
from attnviz.measures.repeats import SEQUENCES
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.compared import check_shapes
from attnviz.models.opening import named_source, open_checkpoint
from attnviz.options import ModelOptions
from attnviz.present.claim import sentence
from attnviz.present.kv_heads import kv_groups
from attnviz.present.published import ARROWS
from attnviz.profiles.parts import PARTS, SYNTACTIC, corpora_of, measured_on, part_of
from attnviz.profiles.store import StoredProfile
from attnviz.version import __version__
from attnviz.wording import rounded

OF_CORPUS = (*OF_TEXTS, "frequencies")
OF_ABLATION = ("label_column", "truncate")

_WITHOUT_TEXTS = (*ROLES_ON_REPEATS, "previous-token")  # roles that random tokens alone can show
_NOT_THERE = "it does not occur there, or is no role that attnviz measures there"


class Measurements:
    """What claims are held against, each measured once."""

    def __init__(self, checkpoint: Checkpoint, given: Mapping[str, Any], opening: ModelOptions) -> None:
        """``given``: the arguments of :func:`attnviz.check` by name; ``opening``: those for other models, too."""
        self.checkpoint, self._given = checkpoint, given
        self.stored: StoredProfile | None = None
        self.profiles = dict[tuple[Path, ...], Profile]()
        self.texts = dict[tuple[Path, ...], Any]()  # those of corpora, where not in their files alone
        self._columns = Columns(given["text_column"], given["pair_column"])
        self._model = cache(lambda name: open_checkpoint(name, **opening)[0] if name else checkpoint)
        self._analysis = cache(self._analyze)
        self._comparison = cache(self._compare)
        self._same = cache(self._is_same)

    def profile(self, corpus: tuple[Path, ...], repeats: bool) -> Profile:
        """The roles of the model over a corpus, with or without random repeats."""
        if corpus not in self.profiles:
            self.profiles[corpus] = profiled(self.checkpoint, self.texts.get(corpus, corpus), repeats, self._given)
        return self.profiles[corpus]

    def _over_texts(self, *more: str) -> dict[str, Any]:
        """The options of a run over texts, and more of them."""
        return {name: self._given[name] for name in (*OF_RUN, *more)}

    def _analyze(self, text: str, name: str = "") -> Analysis:
        truncate, progress = self._given["truncate"], self._given["progress"]
        return analyze(text, self._model(name), truncate=truncate, progress=progress)

    def _compare(self, text: str, corpus: tuple[Path, ...], model: str) -> Comparison | CorpusComparison:
        if text:
            return compare(self._analysis(text), self._analysis(text, model))
        comparison = compare_corpus(self.checkpoint, self._model(model), *corpus, **self._over_texts())
        assert isinstance(comparison, CorpusComparison)  # of one shape, as was checked
        return comparison

    def held(self, claims: Sequence[Claim]) -> Iterator[CheckedClaim]:
        """Each claim against the measurement that it is about."""
        asked = any(self._given[name] is not None for name in OF_CORPUS)
        answers = list[CheckedClaim | None]()
        for claim in claims:  # what cannot be measured is refused before anything takes long
            with placed(claim.prefix):
                other_options = asked and not all(map(is_there, claim.corpus))  # than the stored profile's, named alone
                answer = self._of_stored(claim) if claim.kind == "role" and not other_options else None
                if answer is None:
                    self._check_measurable(claim)
            answers.append(answer)

        @cache
        def ablation(corpus: tuple[Path, ...]) -> Ablation:
            heads = [claim.id for claim in claims if (claim.kind, claim.corpus) == ("ablate", corpus)]
            options = self._over_texts(*OF_ABLATION)
            return ablate(corpus, self.checkpoint, select=heads, curve=False, gradient=False, **options)

        for claim, answer in zip(claims, answers, strict=True):
            with placed(claim.prefix):
                if answer is not None:
                    found = answer
                elif claim.kind == "role":
                    on_corpus = (other.what for other in claims if other.corpus == claim.corpus)
                    repeats = not claim.corpus or not {*on_corpus}.isdisjoint(ROLES_ON_REPEATS)
                    profile = self.profile(claim.corpus, repeats)
                    role = profile.role(claim.id, claim.what, claim.direction)
                    found = CheckedClaim(claim, UNDECIDED, source=profile.source(), reason=_NOT_THERE)
                    if role is not None:
                        found = self._judged(claim, role, profile.source())
                elif claim.kind == "distance_to":
                    found = _distance(claim, self._comparison(claim.text, claim.corpus, claim.what))
                elif claim.kind == "ablate":
                    removed = ablation(claim.corpus)
                    effect = removed.head(claim.id).damage[claim.what]
                    found = decided(claim, effect.value, removed.n_texts, interval=effect.interval)
                else:
                    found = _on_text(claim, self._analysis(claim.text))
            yield found

    def listed(self, heads: HeadList) -> Iterator[CheckedClaim]:
        """The entries of a list: whether a KV head retrieves, or does not."""
        profile = self.profile((), repeats=True)
        entries = [entry for row in heads.rows for entry in row]
        scores = zip(kv_groups(profile.checkpoint), entries, retrieval_scores(profile), strict=True)
        for (layer, number), entry, (score, interval) in scores:
            bound = {"at_least" if entry >= heads.threshold else "at_most": RETRIEVED}
            place: Any = {"place": str(heads.file), "line": layer + 1, "head": f"L{layer} KV {number}", **bound}
            claim = Claim(kind="kv-head", what=RETRIEVAL, published=f"({entry:g} there)", **place)
            yield decided(claim, score, SEQUENCES, interval=interval, source=profile.source(RETRIEVAL))

    def _check_measurable(self, claim: Claim) -> None:
        checkpoint, label = self.checkpoint, self._given["label_column"]
        if claim.text:
            tokenize(checkpoint, claim.text, None, self._given["truncate"])
        if claim.kind == "distance_to":
            check_shapes(checkpoint, named_source(claim.what, None))
        if claim.kind == "ablate":
            columns = replace(self._columns, label=label)
            texts = read_sources(claim.corpus, self._given["limit"], None, None, columns).texts
            kind = prediction_kind(checkpoint, texts, wanted=label is not None)
            metrics = [metric.name for metric in metrics_of(kind)]
            if claim.what not in metrics:
                raise UsageError(f"this model is measured by {' and '.join(metrics)}, not by {claim.what}.")
        for corpus in set(claim.corpus) - {IN_MEMORY}:
            open_corpus(corpus, self._columns)

    def _of_stored(self, claim: Claim) -> CheckedClaim | None:
        """A role by the stored profile of such a corpus, or of the same texts; None where it has to be measured."""
        stored = self.stored
        name = part_of(claim.what, dict.fromkeys(PARTS, "") if claim.corpus or stored is None else stored.parts)
        here = bool(claim.corpus) and all(map(is_there, claim.corpus))
        if stored is not None and name in stored.parts and self._same(name, claim.corpus, here):
            source = f"stored profile: {measured_on(stored.parts[name])}"
            role = next((role for role in stored.roles.get(claim.id, ()) if role.role == claim.what), None)
            if role is not None and claim.direction in ("", role.direction):
                return self._judged(claim, role, source)
            if here and role is None and not stored.shipped:  # it has all roles
                return CheckedClaim(claim, UNDECIDED, source=source, reason=_NOT_THERE)
            if not here and (role is not None or claim.what not in _WITHOUT_TEXTS):
                why = "the stored profile has no such role of this head"
                if role is not None:
                    better = f"{ARROWS[role.direction or '']} ({rounded(role.score)})"
                    why = f"the stored profile has its better direction alone, {better}"
                return CheckedClaim(claim, UNDECIDED, source=source, reason=f"{why}; measure it, with a corpus")
        if claim.corpus or claim.what in _WITHOUT_TEXTS:
            return None
        raise UsageError("expected a corpus, since there is no stored profile of this model with such roles.")

    def _is_same(self, name: str, corpora: tuple[Path, ...], here: bool) -> bool:
        """Whether a part of the stored profile is what would be measured on these corpora, by name if they lack."""
        assert self.stored is not None
        given, part = self._given, self.stored.parts[name]
        if not here:
            return {path.name for path in corpora} <= {PurePath(corpus["path"]).name for corpus in part["corpora"]}
        opened = {str(corpus): open_corpus(corpus, self._columns) for corpus in corpora}
        gold = any(corpus.kind == "conllu" for corpus in opened.values())
        if name == "syntax" and not gold:  # it does not say by which parser
            return False
        listed, dtype = read_frequencies(given["frequencies"]), str(self.checkpoint.dtype).removeprefix("torch.")
        of_part = [part.get(key) for key in ("attnviz", "seed", "frequencies")]
        if [*of_part, self.stored.model.get("dtype")] != [__version__, given["seed"], listed and listed.name, dtype]:
            return False
        if part.get("control_texts") is None:
            return False
        entries = {"corpora": [corpus.entry for corpus in opened.values()], "syntax": {"gold": gold}}
        left = {entry["sha256"]: entry for entry in corpora_of(name, entries)}
        for corpus in part["corpora"]:
            entry = left.pop(corpus.get("sha256"), None)
            if entry is None or entry.get("columns") != corpus.get("columns"):
                return False
            n_texts = sum(1 for _ in read_texts(opened[entry["path"]], given["limit"]))
            if n_texts != corpus["sentences"] + (corpus.get("left_out") or 0):
                return False
        return not left

    def _judged(self, claim: Claim, role: Role, source: str) -> CheckedClaim:
        """A role by the claim's bounds; without any the head must have it."""
        evidence: dict[str, Any] = {"baseline": role.baseline, "untrained": role.untrained, "source": source}
        if not role.describes:  # else it is what it is
            evidence["interval"] = role.interval
        few = f"too few for a verdict: {role.too_few}" if role.too_few else ""
        said = sentence(role, self.checkpoint.full_name) or None
        by_bounds = decided(claim, role.score, role.n, few=few, sentence=said, **evidence)
        if few or claim.at_least is not None or claim.at_most is not None or role.holds:
            return by_bounds
        verdict, why = UNDECIDED, "the role does not pass, but its threshold is within the interval"
        if role.describes:
            verdict, why = FAILS, "the head is below the threshold"
        elif role.refuted:
            verdict, why = FAILS, "the role does not pass"
        return replace(by_bounds, verdict=verdict, reason=why)


def _distance(claim: Claim, compared: Comparison | CorpusComparison) -> CheckedClaim:
    """The distance of the claim's head, or of every head the one that decides."""
    n = compared.texts if isinstance(compared, CorpusComparison) else len(compared.first.units)
    by_head = []
    for head in compared.select(claim.head or ()):
        reason = "" if claim.head else f"decided by {head.id}"
        by_head.append(decided(claim, head.distance, n, interval=head.interval, reason=reason))
    sign = -1 if claim.at_most is None else 1  # of several heads the farthest from what is claimed
    return max(by_head, key=lambda head: (VERDICTS.index(head.verdict), sign * float(head.measured or 0)))


def _on_text(claim: Claim, analysis: Analysis) -> CheckedClaim:
    head = analysis.head(claim.id)
    name = claim.what.rpartition(BOTH)[2]  # of a label its last part
    named = {(SYNTACTIC if verdict.kind == "syntactic" else "") + verdict.name: verdict for verdict in head.verdicts}
    verdict = named.get(name)
    n = analysis.context_of(claim.id.layer).n_non_sink if verdict is None else verdict.n
    score, baseline = (head.statistics.get(name), None) if verdict is None else verdict.judged
    if claim.kind == "score" and score is not None:  # on a fixed text it is what it is, whatever n
        return decided(claim, score, n, baseline=baseline)
    if claim.kind == "score" or (verdict is None and name != UNNAMED):
        return CheckedClaim(claim, UNDECIDED, n=n, reason="it cannot be measured on this text")
    shown = head.labelled.shown
    if n < ENOUGH:
        return CheckedClaim(claim, UNDECIDED, shown, n, baseline, reason=f"n = {n} is below {ENOUGH}")
    there = claim.what in (head.label, *head.label.split(BOTH))
    return CheckedClaim(claim, HOLDS if there else FAILS, shown, n, baseline)
