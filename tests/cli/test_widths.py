"""The tables of every command at 60, 80, 100 and 170 columns: no number is cut, and nothing stands over the edge."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attnviz
from attnviz.commands.models.configurations import paper_configurations
from attnviz.commands.models.report import models_report
from attnviz.language.syntax import Arc
from attnviz.models.checkpoint import from_loaded
from attnviz.present.tables import plain_text
from tests.cli.test_tables import PARSE
from tests.support import corpora
from tests.support.ablations import TEXTS, measured
from tests.support.hand_made import by_design, hand_made
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.stored import profile_of, role

SENTENCE = "the cat that i saw ran away and the dog was in the house of he"
CUT = re.compile(r"\d\.?…|(?<!\S)…(?!\S)")
"""A number with an ellipsis, or a cell that is nothing else."""


def heads(_: Path) -> Callable[[int], str]:
    roles = [role("coreference", 0.75, 0.5, direction="pronoun_to_name"), role("syntactic:nsubj:pass", 0.6, 0.4)]
    patterns = torch.cat([by_design(6)] * 6, 1)
    parse = PARSE.__class__(PARSE.words, (Arc(0, 1, "nsubj:pass"), Arc(1, 2, "compound:prt")), "a-parser")
    return hand_made(patterns=patterns, parse=parse, profile=profile_of({"L0H10": roles, "L1H1": roles[1:]})).report


def analysed(text: str) -> attnviz.Analysis:
    return attnviz.analyze(text, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)


def profile(folder: Path) -> Callable[[int], str]:
    pytest.importorskip("conllu", reason="needs the extra profile")
    path = corpora.treebank(folder / "trees.conllu", 40)
    found = attnviz.profile_heads(from_loaded(sharp_bert(), bert_tokenizer()), [path])
    assert found is not None
    return found.report


COMMANDS: dict[str, Callable[[Path], Callable[[int], str]]] = {
    "heads": heads,
    "compare": lambda _: attnviz.compare(analysed(SENTENCE), analysed(SENTENCE.replace("cat", "dog"))).report,
    "profile": profile,
    "outputs": lambda _: attnviz.head_outputs(SENTENCE, "tiny-gpt2").report,
    "rollout": lambda _: attnviz.rollout(SENTENCE, sharp_bert(), tokenizer=bert_tokenizer()).report,
    "explain": lambda _: attnviz.explain(SENTENCE, sharp_bert(), tokenizer=bert_tokenizer(), layer=0).report,
    "ablate": lambda _: measured("next-token", TEXTS, curve=True, gradient=True).report,
    "models": lambda _: lambda width: plain_text(lambda columns: models_report(paper_configurations(), columns), width),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_number_is_cut_at_any_width(command: str, tmp_path: Path):
    report = COMMANDS[command](tmp_path)
    for width in (60, 80, 100, 170):
        lines = report(width).splitlines()
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if CUT.search(line) and "[" not in line]


@pytest.mark.parametrize("width", [60, 80, 100, 170])
def test_scores_and_baselines_of_labels_are_always_there(width: int):
    text = hand_made().report(width)
    table = text[text.index("Heads (4") :].splitlines()
    for head, numbers in (("L0H0", ["1.00", "0.19", "3"]), ("L1H0", ["1.00", "0.33", "4"])):
        (row,) = [line.split() for line in table if line.startswith(head)]
        assert row[2:5] == numbers
