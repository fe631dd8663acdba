"""patch --to and --self-repair: the induction circuit, effects of pairs in batches, and what both say."""

import json
from typing import Any

import pytest

import attnviz
from tests.support.ablations import next_token_model
from tests.support.llamas import needs_smollm2
from tests.support.tolerances import SHARP_32

INDUCTION: dict[str, Any] = {
    "clean": "one two three four five one two three",
    "corrupt": "one two six four five one two three",
    "answer": " four",
    "foil": " five",
    "model": "tiny-gpt2",
}
MOVERS = {"L1H0", "L1H1", "L1H2", "L1H3"}


@pytest.mark.draws
def test_two_runs_find_the_induction_circuit_of_tiny_gpt2():
    writers = attnviz.patch(**INDUCTION, receiver="logits")
    assert {str(head.id) for head in writers.heads[:4]} == MOVERS
    assert max(map(len, writers.report(80).splitlines())) <= 80
    whole = attnviz.patch(**INDUCTION, select="L1H0").heads[0].effect
    by_keys, *others = attnviz.patch(**INDUCTION, receiver="L1H0.k").heads
    assert str(by_keys.id) == "L0H2"
    assert by_keys.effect == pytest.approx(whole, abs=0.03)
    others += [attnviz.patch(**INDUCTION, receiver=f"L1H0.{reads}", sender="L0H2").heads[0] for reads in "qv"]
    assert max(abs(head.effect) for head in others) < 0.03


BATCHED: list[dict[str, Any]] = [
    {"receiver": "L2H1.k"},
    {"receiver": "logits"},
    {"receiver": "L2H1.q", "networks": "run", "at": "last"},
    {"self_repair": True},
]


@pytest.mark.draws
@pytest.mark.parametrize("options", BATCHED, ids=str)
def test_batches_of_several_lengths_change_nothing_but_rounding(tmp_path, options):
    model, tokenizer = next_token_model()
    path, ends = tmp_path / "pairs.jsonl", {"answer": " ran", "foil": " saw"}
    prompts = {"the cat": "the dog", "i saw the cat": "i saw a cat", "on the tree": "in the tree", "a dog": "i dog"}
    rows = [{"clean": clean, "corrupt": corrupt, **ends} for clean, corrupt in prompts.items()]
    path.write_text("\n".join(map(json.dumps, rows)))
    one, all_at_once = (attnviz.patch(path, model, tokenizer=tokenizer, batch_size=size, **options) for size in (1, 32))
    for head in one.heads:
        other = all_at_once.head(head.id)
        assert other.effect == pytest.approx(head.effect, abs=1e-3)
        if options.get("self_repair"):
            for name in ("direct_effect", "total_effect"):
                assert getattr(other.repair, name) == pytest.approx(getattr(head.repair, name), abs=SHARP_32)


@pytest.mark.parametrize("at", [(), "last"])
def test_self_repair_is_the_difference_of_both_effects_and_its_parts_are_listed(at):
    result = attnviz.patch(**INDUCTION, self_repair=True, direction="noise", at=at)
    for head in result.heads:
        repair = head.repair
        assert repair is not None
        assert repair.repaired == pytest.approx(repair.direct_effect - repair.total_effect)
        assert repair.total_effect == pytest.approx(head.effect * (result.clean - result.corrupt), abs=SHARP_32)
        sizes = [abs(each.change) for each in repair.changed]
        assert sizes == sorted(sizes, reverse=True)
    carrier = result.head("L0H2").repair
    if not at:
        assert carrier.share is None  # it has no direct effect
        assert {each.part for each in carrier.changed[:4]} == MOVERS


@pytest.mark.thorough
@needs_smollm2
def test_the_parts_of_thirty_layers_sum_up_but_for_roundings_of_all_of_them():
    repair = attnviz.patch(**INDUCTION | {"model": "smollm2"}, select="L0H3", self_repair=True).heads[0].repair
    assert repair.repaired == pytest.approx(repair.direct_effect - repair.total_effect)
