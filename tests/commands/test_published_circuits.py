"""Tables of papers on what heads copy and name: models with such circuits by design, and without."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import attnviz
from attnviz.commands.papers import wang_2022, wu_2024
from attnviz.errors import AttnvizError
from attnviz.measures import indirect_objects
from attnviz.measures.copy_suppression import KeptSuppression, explained
from attnviz.measures.intervals import TextSamples
from attnviz.measures.needles import prompts, retrieval
from attnviz.measures.patching import Part, PatchedPasses
from attnviz.measures.paths import receiver_named
from attnviz.measures.predictions import METRICS
from attnviz.measures.prompt_pairs import PairedInputs, paired_inputs
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import find_checkpoint
from attnviz.run.corpus import SampledAttention
from attnviz.run.generate import drafted_greedily
from tests.reference import test_paths
from tests.support import corpora
from tests.support.circuits import SHARP, Head, before, circuit_gpt2, codes
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2, word_tokenizer
from tests.support.tolerances import SHARP_32, SUMS_32, SUMS_64


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """That of tiny-gpt2: 4,096 pieces of English words."""
    return AutoTokenizer.from_pretrained(find_checkpoint("tiny-gpt2").folder)


def texts(path: Path, words: str) -> Path:
    rows = [words.split()[at % 7 :: 1 + at % 3] for at in range(400)]
    path.write_text("\n".join(map(" ".join, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def novel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of other words than the needles'."""
    words = "her letter was never sent because they had gone home again before dinner could be served"
    return texts(tmp_path_factory.mktemp("texts") / "novel.txt", words)


# --- retrieval heads


@pytest.fixture(scope="module")
def copier(tokenizer: Any) -> Checkpoint:
    """L1H1 looks for the token after the last two tokens' earlier copies, and writes it; L1H0 looks there alone."""
    match = [("token", "last", SHARP), ("last", "second last", SHARP)]
    layers = [[before(1, "last"), before(2, "second last")], [Head(), Head(match, write=[("token", "out", 1.0)])]]
    return from_loaded(circuit_gpt2(["last", "second last"], layers, len(tokenizer), 300), tokenizer)


@pytest.mark.thorough
def test_the_head_that_copies_the_needle_is_found_and_no_other(copier: Checkpoint, novel: Path) -> None:
    found = attnviz.check([novel], copier, published="wu-2024")
    share, above, *heads = found.claims
    assert (share.n, above.n) == (60, 4)
    assert 0.5 < float(share.measured or 0) <= 1
    assert (above.measured, above.untrained) == (0.25, 0)
    assert [(each.claim.head, each.verdict) for each in heads] == [("L1H1", "holds")]
    assert heads[0].n == round(60 * float(share.measured or 0))
    assert heads[0].measured == pytest.approx(1, abs=0.2)
    assert found.exit_code == 0


@pytest.mark.draws
def test_scores_are_those_of_a_plain_loop(copier: Checkpoint, tokenizer: Any) -> None:
    model: Any = copier.whole
    model.set_attn_implementation("eager")
    asked = prompts(copier, tokenizer("a long walk home " * 400)["input_ids"], wu_2024.NEEDLES)
    for prompt in (asked[0], asked[-1]):
        ids, score = list(prompt.ids), 0.0
        answer = range(prompt.start, prompt.start + len(prompt.answer))
        assert tuple(ids[position] for position in answer) == prompt.answer
        for _ in prompt.answer:
            with torch.no_grad():
                out = model(torch.tensor([ids]), output_attentions=True)
            largest = int(out.attentions[1][0, 1, -1].argmax())
            ids.append(int(out.logits[0, -1].argmax()))
            score += (largest in answer and ids[largest] == ids[-1]) / len(prompt.answer)
        assert drafted_greedily(copier, prompt.ids, prompt.answer) == ids[len(prompt.ids) :]
        scores, recalled = retrieval(copier, SampledAttention(copier), prompt)
        assert float(scores[1, 1]) == pytest.approx(score)
        assert recalled
        assert score > 0.5
    assert {round((prompt.start - 5) / 200, 1) for prompt in asked} >= {0.1, 0.3, 0.5}


@pytest.mark.thorough
def test_a_model_that_does_not_answer_has_no_retrieval_heads(tokenizer: Any, novel: Path) -> None:
    model = sharp_gpt2(model_class=GPT2LMHeadModel, n_positions=256, n_layer=1, vocab_size=len(tokenizer))
    found = attnviz.check([novel], from_loaded(model, tokenizer), published="wu-2024")
    share, above, *heads = found.claims
    assert (share.measured, share.n, above.measured) == (0, 30, 0)
    assert {each.verdict for each in heads} == {"cannot be decided"}


# --- copy suppression


def suppressor(factor: float, to: str) -> Checkpoint:
    """L0H0 predicts the previous token, L1H0 looks for what is predicted."""
    head = Head([("out", "token", SHARP)], write=[("token", to, factor)])
    words = word_tokenizer()
    model = circuit_gpt2(["other"], [[before(1, "out", 0.08)], [head]], len(words), 60, gain=0.5)
    return from_loaded(model, words)


@pytest.mark.draws
@torch.no_grad()
@pytest.mark.parametrize(("factor", "to", "share"), [(-0.04, "out", 1), (0.04, "out", 0), (-0.04, "other", 0)])
def test_the_share_of_copy_suppression_is_all_of_a_head_that_does_nothing_else(
    factor: float, to: str, share: float, tmp_path: Path
) -> None:
    checkpoint = suppressor(factor, to)
    lines = texts(tmp_path / "a.txt", " ".join(corpora.WORDS)).read_text(encoding="utf-8").split("\n")[:15]
    measure = KeptSuppression(checkpoint, HeadId(1, 0), 0)
    rows_of_ids = [checkpoint.tokenizer(f"{line} {line}")["input_ids"] for line in lines]
    for ids in rows_of_ids:
        measure.count(measure.see(ids))
    sums = torch.stack([measure.divergences(measure.see(ids)).sum(-1) for ids in rows_of_ids])
    assert float(sums[:, 0].sum()) > 1e-6
    found = float(explained(sums, TextSamples(0, range(15))).estimates)
    assert max(found, 0) == pytest.approx(share, abs=0.05)


@torch.no_grad()
def test_both_ablations_are_those_of_a_plain_loop(tokenizer: Any) -> None:
    model = sharp_gpt2(4, GPT2LMHeadModel, vocab_size=4096).double()
    model.transformer.h[1].attn.c_proj.weight.mul_(100)
    model.transformer.ln_f.weight.uniform_(5, 15)
    checkpoint, ids = from_loaded(model, tokenizer), tokenizer("the cat that i saw ran away from the cat")["input_ids"]
    measure = KeptSuppression(checkpoint, HeadId(1, 2), 0)
    measure.count(measure.see(ids))
    measured = measure.divergences(measure.see(ids))

    model.set_attn_implementation("eager")
    body, block, final = model.transformer, model.transformer.h[1], list[torch.Tensor]()
    body.ln_f.register_forward_pre_hook(lambda _, given: final.append(given[0][0]))
    out = model(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    entered, pattern = out.hidden_states[1][0], out.attentions[1][0, 2]
    values = block.ln_1(entered) @ block.attn.c_attn.weight[:, 80:88]
    outputs, n = values @ block.attn.c_proj.weight[16:24], len(ids)
    predicted = model.lm_head(body.ln_f(entered)).argsort(-1, descending=True)[:, : int(0.05 * 4096)]
    kept = torch.zeros_like(outputs)
    for query in range(n):
        for key in range(query + 1):
            towards = model.lm_head.weight[ids[key]] * body.ln_f.weight
            towards = towards - towards.mean()
            along = outputs[key] @ towards / (towards @ towards)
            is_kept = ids[key] in predicted[query]
            kept[query] += pattern[query, key] * (along.clamp(max=0) * towards if is_kept else outputs.mean(0))
    written = pattern @ outputs
    changes = (0, written.mean(0) - written, kept - written)
    logs = [model.lm_head(body.ln_f(final[0] + change)).log_softmax(-1) for change in changes]
    expected = [(logs[0].exp() * (logs[0] - other)).sum(-1) for other in logs[1:]]
    assert measured.numpy() == pytest.approx(torch.stack(expected).numpy(), abs=SUMS_64, rel=SUMS_32)
    assert float(measured[1].max()) > 1e-6


@pytest.mark.thorough
def test_the_table_takes_the_clearest_heads_of_a_model_that_the_paper_does_not_name(tmp_path: Path) -> None:
    path = texts(tmp_path / "a.txt", " ".join(corpora.WORDS))
    found = attnviz.check([path], suppressor(-0.04, "out"), published="mcdougall-2023", limit=40)
    claims = {each.claim.head: each for each in found.claims if each.verdict != "reported"}
    assert claims["L1H0"].verdict == "holds"
    assert 0.9 < float(claims["L1H0"].measured or 0) <= 1
    assert claims["L0H0"].verdict == "fails"


@pytest.mark.parametrize(
    ("name", "what"), [("mcdougall-2023", "bert"), *(("wu-2024", x) for x in ("bert", "short", "small"))]
)
def test_what_cannot_be_measured_is_told(name: str, what: str, copier: Checkpoint, tmp_path: Path, novel: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("a short text\n", encoding="utf-8")
    gpt2 = sharp_gpt2(model_class=GPT2LMHeadModel, n_positions=20, vocab_size=len(copier.tokenizer))
    small = from_loaded(gpt2, copier.tokenizer)
    model = {"bert": from_loaded(sharp_bert(), bert_tokenizer()), "small": small}.get(what, copier)
    with pytest.raises(AttnvizError, match=name):
        attnviz.check([short if what == "short" else novel], model, published=name)


# --- indirect objects


def circuit(tokenizer: Any) -> Any:
    """L0H0 tells what came before; L1H0 looks at the name after a stop, and tells the end; two heads use that.

    L2H0 looks at names but that one and writes what it looks at; L2H1 looks there, too, and writes against it.
    """
    table = codes(len(tokenizer), 1)

    def together(words: list[str], factor: float) -> torch.Tensor:
        ids = [tokenizer(word)["input_ids"] for word in words]
        return factor * table[[each[0] for each in ids if len(each) == 1]].sum(0)

    names = together([f" {name}" for name in wang_2022.WORDS["names"].split()], 4.0)
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
    pairs = indirect_objects.prompts(checkpoint, wang_2022.WORDS, n, 0)
    inputs = paired_inputs(checkpoint, pairs, "logit_difference", ())
    return inputs._replace(positions=[(each.positions, each.positions) for each in inputs.clean])


@pytest.mark.parametrize(("to", "sender"), [("logits", HeadId(2, 0)), ("L2H0.q", HeadId(1, 0))])
def test_an_effect_is_that_of_plain_hooks(
    to: str, sender: HeadId, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = from_loaded(circuit(tokenizer), tokenizer)
    inputs, receiver = inputs_of(checkpoint, 1), receiver_named(to, checkpoint, "run")
    passes = PatchedPasses(
        checkpoint=checkpoint,
        inputs=inputs,
        metric=METRICS["logit_difference"],
        denoises=False,
        path=receiver,
        unrelated=False,
    )
    passes.run([Part(*sender)], 1, lambda *_: None)
    (clean,), (corrupt,) = inputs.clean, inputs.corrupt
    (answer,), (foil,), end = clean.labels, clean.foils, clean.positions[0]
    monkeypatch.setattr(test_paths, "BASE", torch.tensor([clean.item.ids]))
    monkeypatch.setattr(test_paths, "OTHER", torch.tensor([corrupt.item.ids]))
    with torch.no_grad():
        own = checkpoint.whole(test_paths.BASE).logits[0, end]  # type: ignore[misc]
    patched = test_paths.logits_by_hooks(checkpoint, sender, receiver.head, receiver.reads, [end], "run")[end]
    fall = float(own[answer] - own[foil] - patched[answer] + patched[foil])
    assert float(passes.damage[0, 0, 0]) == pytest.approx(fall, abs=SHARP_32)
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
    assert indirect_objects.prompts(checkpoint, wang_2022.WORDS, 20, 0) == indirect_objects.prompts(
        checkpoint, wang_2022.WORDS, 20, 0
    )
    assert indirect_objects.prompts(checkpoint, wang_2022.WORDS, 20, 0) != indirect_objects.prompts(
        checkpoint, wang_2022.WORDS, 20, 1
    )


def test_what_is_no_decoder_or_has_too_few_names_cannot_be_measured() -> None:
    for model, tokenizer in (
        (sharp_bert(), bert_tokenizer()),
        (sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer()),
    ):
        with pytest.raises(AttnvizError, match="wang-2022"):
            attnviz.check(model=from_loaded(model, tokenizer), published="wang-2022")
