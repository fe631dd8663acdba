"""Wang et al. 2022: the heads that find the indirect object (IOI), by path patching, attention and copying."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.ablate.inputs import InputBatch, input_batches
from attnviz.commands.check.checked import HOLDS, CheckedClaim
from attnviz.commands.check.papers.table import PaperRun, PaperTable, too_few
from attnviz.commands.patch.measure import PatchedPasses
from attnviz.commands.patch.pairs import DIFFERENCE, PairedInputs, interval_over_pairs, paired_inputs
from attnviz.errors import CheckpointError, UsageError
from attnviz.judge.roles import ERROR_RATE
from attnviz.measures.bootstrap import named_generator, text_weights
from attnviz.measures.estimates import proportion_evidence
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.encoding import token_id
from attnviz.models.head_ids import HeadId, all_heads
from attnviz.models.wording import counted
from attnviz.profiles.published import heads_of_paper
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.texts.batches import SampledAttention
from attnviz.texts.tables import PromptPair
from attnviz.trace.contributions import without_gradients
from attnviz.trace.paths import Receiver, why_no_paths
from attnviz.trace.taps import sites_of, taps

PAPER = "wang-2022"

NAMES = (
    "Mary John Tom James Dan Martin Michael Robert William David Richard Charles Joseph Thomas Daniel Matthew Anthony "
    "Mark Paul Steven Andrew Kenneth George Joshua Kevin Brian Edward Ronald Timothy Jason Jeffrey Ryan Jacob Gary "
    "Nicholas Eric Jonathan Stephen Larry Justin Scott Benjamin Samuel Frank Patrick Jack Alex Adam Anna Amy Alice "
    "Kate Emily Jessica Sarah Laura Lisa Jane Julia Elizabeth Rachel Susan Linda Emma Helen Ruth Rose Grace Henry "
    "Peter Simon Arthur Lucy Charlotte Harry Sam Ben Bob"
).split()
PLACES = "store garden station school office hospital house market".split()
THINGS = "drink book ring letter key basket flower picture".split()

TEMPLATES = (
    "When {} and {} went to the {place}, {} gave a {thing} to",
    "After {} and {} came home from the {place}, {} handed a {thing} to",
    "While {} and {} were working at the {place}, {} wanted to give a {thing} to",
    "Yesterday {} and {} had a lot of fun at the {place}. {} gave a {thing} to",
    "Once {} and {} found a {thing} at the {place}. In the end {} decided to give it to",
    "Today {} and {} had a long talk about a {thing} at the {place}. {} said something to",
)
"""The places of three names: both persons, in either order, and the subject again."""

PROMPTS, LEAST_NAMES = 128, 10
"""Prompts that are made (the paper: 100,000), and names of one token that it takes."""

COPIED, AMONG = 0.5, 5
"""Share of names that a mover copies, and among how many of the largest logits; the paper's heads have over 0.95."""

CANDIDATES = 10
"""Heads that are tried for a role, those of the largest effect first."""

IO, FIRST_S, SECOND_S = range(3)


@dataclass(frozen=True)
class CircuitRole:
    """A class of heads: as the paper names it, how many it has, its sign, and what a head looks at and not at."""

    name: str
    most: int
    sign: int
    at: tuple[int, ...] = (IO,)
    not_at: tuple[int, ...] = (FIRST_S, SECOND_S)

    @property
    def moves(self) -> bool:
        """Whether its heads write names."""
        return self.at == (IO,)


NAME_MOVER, NEGATIVE = CircuitRole("name mover", 3, 1), CircuitRole("negative name mover", 2, -1)
S_INHIBITION = CircuitRole("S-inhibition", 4, 1, (SECOND_S,), (IO,))
ROLES = (NAME_MOVER, NEGATIVE, S_INHIBITION)


def prompts(checkpoint: Checkpoint, n_prompts: int, seed: int) -> list[PromptPair]:
    """Sentences of both orders (ABBA and BABA in turn), each with one of three random other names (ABC)."""
    names = [f" {name}" for name in NAMES if _is_token(checkpoint, f" {name}")]
    if len(names) < LEAST_NAMES:
        raise CheckpointError(
            f"{PAPER} takes {LEAST_NAMES} names that are one token each with the space before them, such as ' Mary'; "
            f"this tokenizer has {counted(len(names), 'such name')}."
        )
    generator, made = named_generator(f"{PAPER}:{seed}"), list[PromptPair]()

    def drawn(words: Sequence[str], n: int = 1) -> list[str]:
        return [words[at] for at in torch.randperm(len(words), generator=generator)[:n].tolist()]

    for number in range(n_prompts):
        answer, subject, *others = drawn(names, 5)
        both = (answer, subject) if number % 2 == 0 else (subject, answer)
        template, words = drawn(TEMPLATES)[0], {"place": drawn(PLACES)[0], "thing": drawn(THINGS)[0]}
        clean, corrupt = (
            template.format(*map(str.strip, three), **words) for three in ((*both, subject), tuple(others))
        )
        made.append(PromptPair(clean, corrupt, answer, subject))
    return made


def _is_token(checkpoint: Checkpoint, word: str) -> bool:
    try:
        token_id(checkpoint.tokenizer, "answer", word, int(checkpoint.config.vocab_size))
    except UsageError:
        return False
    return True


class IndirectObjects:
    """What one model does at the end of the prompts.

    Attributes:
        falls: by how much the logit difference falls if the path of each head to the logits is patched,
            [n_layers * n_heads, n_prompts].
        differences: logit of the indirect object less that of the subject, [n_prompts].
        attention: to it and to both mentions of the subject, [n_prompts, 3, n_layers, n_heads].
    """

    def __init__(self, run: PaperRun, checkpoint: Checkpoint, inputs: PairedInputs) -> None:
        self._run, self._checkpoint, self._inputs = run, checkpoint, inputs
        n = len(inputs.clean)
        self.heads = all_heads(checkpoint.n_layers, checkpoint.n_heads)
        self.differences = torch.zeros(n, dtype=torch.float64)
        self.falls = self.falls_to(Receiver(None, ""))
        self.attention = torch.zeros(n, 3, checkpoint.n_layers, checkpoint.n_heads, dtype=torch.float64)
        self._names: list[Tensor] = [torch.empty(0)] * n  # the residual stream at the indirect object, layer 0 passed
        reader = SampledAttention(checkpoint, run.options["seed"])
        for batch in input_batches(checkpoint, inputs.clean, run.options["batch_size"]):
            streams = sites_of(checkpoint, ["residual"], [min(1, checkpoint.n_layers - 1)])
            with taps(streams, partial(self._keep, batch)):
                reader.run(batch.batch, partial(self._look, batch))

    def falls_to(self, receiver: Receiver) -> Tensor:
        """As ``falls``, of the path to another receiver; 0 for heads that come after it."""
        falls = torch.zeros(len(self.heads), len(self._inputs.clean), dtype=torch.float64)
        senders = receiver.senders(self._checkpoint)
        passes = PatchedPasses(self._checkpoint, self._inputs, DIFFERENCE, False, receiver, unrelated=False)
        passes.measure_prompts(self._run.options["batch_size"])
        passes.run(senders, self._run.options["batch_size"], partial(self._run.options["progress"] or _silent, PAPER))
        falls[: len(senders)] = passes.changes[0]
        self.differences = -passes.clean
        return falls

    def copies(self, id: HeadId, sign: int) -> Tensor:
        """Whether the head, on what the first layer made of a name, writes that name among the largest logits."""
        model, (layer, head) = self._checkpoint, id
        modules, parameters = model.modules[layer], model.architecture.parameters(model.model, layer)
        predict: Any = model.language_head
        with without_gradients(model.device):
            read = torch.stack(self._names)[None]
            if modules.attention_norm is not None:
                read = modules.attention_norm(read)
            values = upcast(attention.values(read, parameters)[0, head])
            written = (values @ upcast(parameters.output_weight[head])).to(read.dtype)
            if modules.attention_output_norm is not None:
                written = modules.attention_output_norm(written)
            logits = predict(model.architecture.final_states(model.model, sign * written))
            best: Tensor = logits.topk(AMONG).indices.cpu()
        names = torch.tensor([each.labels for each in self._inputs.clean])
        return (best == names).any(-1).double()

    def _keep(self, batch: InputBatch, _: tuple[int, str], value: Tensor) -> None:
        for row, each in enumerate(batch.inputs):
            self._names[each.text] = value[row, each.item.ids.index(each.labels[0])].detach()

    def _look(self, batch: InputBatch, layer: int, pattern: Tensor) -> None:
        for row, each in enumerate(batch.inputs):
            ids = each.item.ids
            places = [ids.index(each.labels[0]), *(at for at, id in enumerate(ids) if id == each.foils[0])]
            self.attention[each.text, :, layer] = pattern[row, :, each.positions[0], places].T.double().cpu()


def _silent(*_: Any) -> None:
    pass


class _Rows:
    """The rows of one run: of the model, and beside it of its untrained copy."""

    def __init__(self, run: PaperRun, inputs: PairedInputs) -> None:
        self._run, self._n = run, len(inputs.clean)
        self._own, self._fresh = (IndirectObjects(run, each, inputs) for each in (run.checkpoint, _untrained(run)))
        self._heads, self._few = self._own.heads, too_few(self._n).replace("text", "prompt")
        self._weights = text_weights(run.options["seed"], range(self._n))
        self._named = heads_of_paper(PAPER, *_shape(run.checkpoint), (PAPER,))

    def all(self) -> Iterator[CheckedClaim]:
        """The task, and the heads of each role."""
        own, fresh, n = self._own.differences, self._fresh.differences, self._n
        interval = interval_over_pairs(self._means(own[None])[:, 0], n, 1)
        task = self._run.claimed(
            "logit(IO) - logit(S)", float(own.mean()), n, at_least=0.0, untrained=float(fresh.mean()),
            interval=interval, few=self._few, published="3.56",
        )  # fmt: skip
        yield task
        share, untrained = (float((each > 0).double().mean()) for each in (own, fresh))
        yield self._run.reported("prompts with IO above S", share, n, untrained=untrained, published="0.993")
        if task.verdict != HOLDS:
            self._few = self._few or "the model does not do the task"
        movers = list[HeadId]()
        for role in (NAME_MOVER, NEGATIVE):
            found = yield from self._role(role, self._own.falls, self._fresh.falls)
            if role is NAME_MOVER:
                movers = found
        receivers = [Receiver(id, "q") for id in movers if id.layer > 0]
        if not receivers:
            yield self._run.undecided(S_INHIBITION.name, self._few or "no name mover was found")
            return
        falls, of_fresh = (
            torch.stack([each.falls_to(receiver) for receiver in receivers]).mean(0)
            for each in (self._own, self._fresh)
        )
        yield from self._role(S_INHIBITION, falls, of_fresh)

    def _role(self, role: CircuitRole, falls: Tensor, of_fresh: Tensor) -> Any:
        """Yield the rows of the heads that have a role, or else of the best one; returns these heads."""
        difference = self._means(self._own.differences[None])
        shares = role.sign * self._means(falls) / difference  # [1 + samples, n_heads]
        control = float((role.sign * of_fresh.mean(-1)).max() / difference[0].abs())
        ranked = [self._heads[at] for at in shares[0].argsort(descending=True).tolist()]
        rows_of = partial(self._of_head, role, shares, control)
        found = _holding(role, ranked, rows_of)
        shown = dict(found) or {ranked[0]: rows_of(ranked[0])}
        for each in self._named:
            if each.role == role.name and each.id not in shown:
                shown[each.id] = rows_of(each.id)
        for rows in shown.values():
            yield from rows
        return list(found)

    def _of_head(self, role: CircuitRole, shares: Tensor, control: float, id: HeadId) -> list[CheckedClaim]:
        at, n_heads, run = self._heads.index(id), len(self._heads), self._run
        claimed = partial(run.claimed, n=self._n, head=id, few=self._few)
        named = "named in the paper" if any((each.id, each.role) == (id, role.name) for each in self._named) else ""
        interval = interval_over_pairs(shares[:, at], self._n, n_heads)
        effect = "share of the difference" if role.moves else "share of the difference, by queries of name movers"
        rows = [
            claimed(f"{role.name}: {effect}", float(shares[0, at]), at_least=0.0, interval=interval,
                    untrained=control, published=named)
        ]  # fmt: skip
        looks, others, fresh = (
            each.attention[:, list(to), *id].sum(1)
            for each, to in ((self._own, role.at), (self._own, role.not_at), (self._fresh, role.at))
        )
        samples = self._means(looks[None]) / self._means(torch.ones_like(looks)[None])
        rows.append(
            claimed(f"{role.name}: attention to {'IO' if role.moves else 'S2'}", float(looks.mean()),
                    interval=interval_over_pairs(samples[:, 0], self._n, n_heads), baseline=float(others.mean()),
                    untrained=float(fresh.mean()), published={NAME_MOVER: "0.59", S_INHIBITION: "0.51"}.get(role, ""))
        )  # fmt: skip
        if role.moves:
            own, control = (float(each.copies(id, role.sign).mean()) for each in (self._own, self._fresh))
            error = (own * (1 - own) / self._n) ** 0.5
            if interval is not None:
                counts, rate = (self._n, self._n), ERROR_RATE / n_heads
                interval = proportion_evidence(own, 0.0, (error, error), counts, rate).interval
            published = "above 0.95" if role is NAME_MOVER else "0.98"
            rows.append(
                claimed(f"{role.name}: copy score", own, at_least=COPIED, untrained=control,
                        interval=interval, published=published)
            )  # fmt: skip
        return rows

    def _means(self, values: Tensor) -> Tensor:
        """Means over bootstrap samples of prompts, of values [m, n_prompts]: [1 + samples, m]."""
        return self._weights @ values.T / self._weights.sum(1, keepdim=True)


def _holding(
    role: CircuitRole, ranked: Sequence[HeadId], rows_of: Callable[[HeadId], list[CheckedClaim]]
) -> dict[HeadId, list[CheckedClaim]]:
    """The first heads of which all rows hold."""
    found = dict[HeadId, list[CheckedClaim]]()
    for id in ranked[:CANDIDATES]:
        rows = rows_of(id)
        if len(found) == role.most or rows[0].verdict != HOLDS:
            break
        if all(row.verdict == HOLDS for row in rows):
            found[id] = rows
    return found


def _untrained(run: PaperRun) -> Checkpoint:
    """The whole model freshly initialised, its unembedding too, whose logits count here."""
    trained, whole = run.checkpoint, type(run.checkpoint.whole)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.options["seed"])
        fresh: Any = whole(trained.config)  # type: ignore[misc]
    return from_loaded(fresh.to(trained.device, trained.dtype).eval(), trained.tokenizer)


def _shape(checkpoint: Checkpoint) -> tuple[str, int, int]:
    return checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads


def _measure(run: PaperRun) -> Iterator[CheckedClaim]:
    checkpoint, options = run.checkpoint, run.options
    if checkpoint.language_head is None or not checkpoint.architecture.causal or why_no_paths(checkpoint):
        raise CheckpointError(f"{PAPER} follows paths to the next name: expected a decoder, such as gpt2.")
    pairs = prompts(checkpoint, min(options["limit"] or PROMPTS, PROMPTS), options["seed"])
    inputs = paired_inputs(checkpoint, pairs, DIFFERENCE, ())
    ends = [each.positions for each in inputs.clean]
    yield from _Rows(run, inputs._replace(positions=ends)).all()


WANG_2022 = PaperTable(
    name=PAPER,
    cited="Wang et al. 2022, Interpretability in the Wild: a Circuit for Indirect Object Identification in GPT-2 small",
    data=f"{PROMPTS} sentences of our own, such as 'When Mary and John went to the store, John gave a drink to', in "
    "both orders of the names; corrupt prompts have three other names",
    metric="share of logit(IO) - logit(S) that is lost if the path from the head's output at the end, to the logits or "
    "to the queries of each name mover found (a mean over these), is patched from the corrupt prompt, all else frozen "
    "(paper: feed-forward networks run, all name movers together); its attention from the end, beside that to S (of "
    "S-inhibition: to IO); the share of names that are among its 5 largest logits, by values and outputs of the head "
    "on the residual stream after the first layer",
    threshold=f"effects above 0 and above all heads of the untrained copy, intervals corrected for all heads; copy "
    f"score {COPIED} (our own; the paper's heads have over 0.95, an average one 0.2)",
    needs_corpus=False,
    roles=tuple(role.name for role in ROLES),
    measure=_measure,
)  # fmt: skip
