"""The table of Wang et al. 2022: name movers and S-inhibition built by hand are found, and nothing in random models."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import attnviz
from attnviz.commands.check.papers import wang_2022
from attnviz.commands.patch.measure import PatchedPasses
from attnviz.commands.patch.pairs import PairedInputs, paired_inputs
from attnviz.errors import AttnvizError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import find_checkpoint
from attnviz.trace.paths import receiver_named
from tests.reference import test_paths
from tests.support.circuits import Head, before, circuit_gpt2, codes
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SHARP_32


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """That of tiny-gpt2."""
    return AutoTokenizer.from_pretrained(find_checkpoint("tiny-gpt2").folder)


def circuit(tokenizer: Any) -> Any:
    """L0H0 tells what came before; L1H0 looks at the name after a stop, and tells the end; two heads use that.

    L2H0 looks at names but that one and writes what it looks at; L2H1 looks there, too, and writes against it.
    """
    table = codes(len(tokenizer), 1)

    def together(words: list[str], factor: float) -> torch.Tensor:
        ids = [tokenizer(word)["input_ids"] for word in words]
        return factor * table[[each[0] for each in ids if len(each) == 1]].sum(0)

    names = together([f" {name}" for name in wang_2022.NAMES], 4.0)
    inhibits = Head(beside={"token": names, "last": together([",", ".", " end"], 4.0)}, write=[("token", "found", 1.0)])

    def mover(factor: float) -> Head:
        return Head([("found", "token", -2.0)], {"token": names}, [("token", "out", factor)])

    layers = [[before(1, "last"), Head()], [inhibits, Head()], [mover(1.0), mover(-0.3)]]
    return circuit_gpt2(["last", "found"], layers, len(tokenizer), 40)


@pytest.mark.thorough
def test_heads_by_design_have_the_roles_and_a_head_of_the_paper_stands_beside(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wang_2022, "heads_of_paper", lambda *_: [SimpleNamespace(role="name mover", id=HeadId(0, 0))])
    found = attnviz.check(model=from_loaded(circuit(tokenizer), tokenizer), published="wang-2022", limit=40)
    verdicts: dict[tuple[str, str], set[str]] = {}
    for each in found.claims:
        verdicts.setdefault((each.claim.what.partition(":")[0], each.claim.head), set()).add(each.verdict)
    assert verdicts.pop(("name mover", "L0H0")) != {"holds"}
    assert verdicts.pop(("prompts with IO above S", "")) == {"reported"}
    heads = {"logit(IO) - logit(S)": "", "name mover": "L2H0", "negative name mover": "L2H1", "S-inhibition": "L1H0"}
    assert verdicts == {role: {"holds"} for role in heads.items()}
    assert {each.claim.head for each in found.claims if "named" in each.claim.published} == {"L0H0"}
    assert found.exit_code != 0


@pytest.mark.draws
def test_without_the_task_each_role_is_one_undecided_row(tokenizer: Any) -> None:
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=48, n_layer=2, n_head=4, n_positions=40)
    model = from_loaded(GPT2LMHeadModel(config).eval(), tokenizer)
    found = attnviz.check(model=model, published="wang-2022", limit=30)
    undecided = [each.claim.what for each in found.claims if each.verdict == "cannot be decided"]
    assert undecided[-3:] == ["name mover", "negative name mover", "S-inhibition"]
    assert (found.count("holds"), len(found.claims)) == (0, 5)


def inputs_of(checkpoint: Checkpoint, n: int) -> PairedInputs:
    pairs = wang_2022.prompts(checkpoint, n, 0)
    inputs = paired_inputs(checkpoint, pairs, "logit_difference", ())
    return inputs._replace(positions=[(each.positions, each.positions) for each in inputs.clean])


@pytest.mark.parametrize(("to", "sender"), [("logits", HeadId(2, 0)), ("L2H0.q", HeadId(1, 0))])
def test_an_effect_is_that_of_plain_hooks(
    to: str, sender: HeadId, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = from_loaded(circuit(tokenizer), tokenizer)
    inputs, receiver = inputs_of(checkpoint, 1), receiver_named(to, checkpoint)
    passes = PatchedPasses(checkpoint, inputs, "logit_difference", False, receiver, unrelated=False, networks="run")
    passes.run([sender], 1, lambda *_: None)
    (clean,), (corrupt,) = inputs.clean, inputs.corrupt
    (answer,), (foil,), end = clean.labels, clean.foils, clean.positions[0]
    monkeypatch.setattr(test_paths, "BASE", torch.tensor([clean.item.ids]))
    monkeypatch.setattr(test_paths, "OTHER", torch.tensor([corrupt.item.ids]))
    with torch.no_grad():
        own = checkpoint.whole(test_paths.BASE).logits[0, end]  # type: ignore[misc]
    patched = test_paths.logits_by_hooks(checkpoint, sender, receiver.head, receiver.reads, [end], "run")[end]
    fall = float(own[answer] - own[foil] - patched[answer] + patched[foil])
    assert float(passes.changes[0, 0, 0]) == pytest.approx(fall, abs=SHARP_32)
    assert fall > 1


def test_prompts_are_of_both_orders_with_three_other_names_and_of_as_many_tokens(tokenizer: Any) -> None:
    checkpoint = from_loaded(circuit(tokenizer), tokenizer)
    inputs = inputs_of(checkpoint, 20)
    first = 0
    for clean, corrupt in zip(inputs.clean, inputs.corrupt, strict=True):
        (answer,), (foil,), ids = clean.labels, clean.foils, clean.item.ids
        assert (ids.count(answer), ids.count(foil)) == (1, 2)
        changed = [(one, other) for one, other in zip(ids, corrupt.item.ids, strict=True) if one != other]
        assert len({other for _, other in changed}) == len(changed) == 3
        assert not {answer, foil} & set(corrupt.item.ids)
        first += ids.index(answer) < ids.index(foil)
    assert first == 10
    assert wang_2022.prompts(checkpoint, 20, 0) == wang_2022.prompts(checkpoint, 20, 0)
    assert wang_2022.prompts(checkpoint, 20, 0) != wang_2022.prompts(checkpoint, 20, 1)


GPT2 = partial(sharp_gpt2, 0, GPT2LMHeadModel)


@pytest.mark.parametrize("made", [(sharp_bert, bert_tokenizer), (GPT2, gpt2_tokenizer)])
def test_what_is_no_decoder_or_has_too_few_names_cannot_be_measured(made: tuple[Any, Any]) -> None:
    with pytest.raises(AttnvizError, match="wang-2022"):
        attnviz.check(model=from_loaded(*(make() for make in made)), published="wang-2022")
