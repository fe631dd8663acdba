"""Pages of all kinds in one session of Chromium, since starting one takes longer than all that is done in it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import attnviz
from attnviz.analysis.result import Analysis
from attnviz.commands.explain import Explanation
from attnviz.inputs.prompt import Text
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.models.checkpoint import from_loaded
from attnviz.wording import visible
from tests.conftest import SENTENCE
from tests.support.browser import Page, chromium
from tests.support.chats import MESSAGES, chat_model, chat_tokenizer
from tests.support.corpora import treebank
from tests.support.drawn import HOSTILE
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.explained import of_bert, of_gpt2
from tests.support.hand_made import by_design, first_pattern, hand_made, uniform_pattern
from tests.support.llamas import sharp_llama
from tests.support.models import gpt2_tokenizer
from tests.support.results import result_of
from tests.support.stored import profile_of, role

IMAGE = '</script><img src=x onerror="document.title=1">'
MARKUP = [IMAGE, "\u202egnp.exe\u202c", "<b>bold</b>", "&lt;", "$x$", *HOSTILE]
IN_COMMANDS = " ".join(MARKUP).replace("\x00", "\x150\x7f\x85\u2028\u200d\u00a0\U000e0041'\\'\r")
"""A text that a command line can have."""

LABELS = ["[CLS]", *"the cat that the dog chased".split(), "[SEP]"]
OBJ, NSUBJ = (role(f"syntactic:{name}", 0.7, 0.4, direction="dependent_to_head") for name in ("obj", "nsubj"))
ROLES = profile_of({"L0H0": [role("previous-token", 0.95, 0.1)], "L0H1": [OBJ], "L1H0": [NSUBJ]})
PATTERNS = torch.stack([first_pattern(8), torch.eye(8).roll(1, 0), uniform_pattern(8)]).repeat(8, 1, 1)
MANY = torch.softmax(8 * torch.rand(270, 8, 8, generator=torch.Generator().manual_seed(1)), -1)

WORDS = "the boy ate an apple , the girl read a very old book and the dog quickly chased a big cat".split()
OBJECTS = Parse(
    tuple(Word(word, (at,)) for at, word in enumerate(WORDS, 1)), (Arc(3, 2, "obj"), Arc(12, 8, "obj")), "by hand"
)
LONG = hand_made(labels=["[CLS]", *WORDS, "[SEP]"], special=(0, 22), patterns=by_design(23), parse=OBJECTS)
"""Of two objects the head of the previous token finds the one beside its verb."""


@pytest.fixture(scope="session")
def analysis(bert_folder: Path) -> Analysis:
    return attnviz.analyze(SENTENCE, bert_folder, syntax=False)


@cache
def explained() -> Explanation:
    return of_bert(head="L1H0", token="cat")


@pytest.fixture(scope="session")
def translated() -> Analysis:
    tokenizer = unigram_tokenizer()
    return attnviz.analyze(SOURCE, from_loaded(sharp("bart", len(tokenizer)), tokenizer), target=TARGET, syntax=False)


@cache
def windowed(words: bool) -> Analysis:
    """Of a causal model each of whose tokens sees four, with words of several tokens."""
    text = "the cat that i saw ran away unbelievableness saw a dog"
    model = sharp_llama("mistral", sliding_window=4)
    return attnviz.analyze(text, model, tokenizer=gpt2_tokenizer(), words=words, syntax=False)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory, analysis: Analysis, translated: Analysis) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("pages")
    analysis.save(folder, figures=["page"])
    explained().save(folder / "explain", figures=["page"])
    of_gpt2("the cat that i saw ran").save(folder / "explain-causal", figures=["page"])
    labels = ["[CLS]", *(visible(label) or "x" for label in MARKUP)]
    uniform = torch.full((1, 2, len(labels), len(labels)), 1 / len(labels))
    hostile = hand_made(
        labels=labels, special=(0,), name="<b>&</script>", text=" ".join(MARKUP), pair="</script>", patterns=uniform
    )
    causal = MANY.tril() / MANY.tril().sum(-1, keepdim=True)
    other = attnviz.analyze(SENTENCE.replace("cat", "dog"), analysis.checkpoint, syntax=False)
    pages = {
        "hostile": hostile.page(),
        "escaped": replace(hostile, tokens=replace(hostile.tokens, source=Text(IN_COMMANDS, pair="\\x00 it's"))).page(),
        "roles": hand_made(labels=LABELS, special=(0, 7), patterns=PATTERNS.reshape(2, 12, 8, 8), profile=ROLES).page(),
        "many": hand_made(labels=LABELS, special=(), patterns=causal.reshape(30, 9, 8, 8), causal=True).page(),
        "translated": translated.page(),
        "compare": attnviz.compare(analysis, other).page(),
        "outlined": LONG.page(relation="obj"),
        "zeros": hand_made(labels=LABELS, special=(), patterns=first_pattern(8).expand(1, 2, 8, 8), causal=True).page(),
        "windowed-token": windowed(False).page(),
        "windowed-word": windowed(True).page(),
        "windowed-compare": attnviz.compare(windowed(False), windowed(False)).page(),
    }
    for name, content in pages.items():
        (folder / f"{name}.html").write_text(content, encoding="utf-8")
    chat = attnviz.analyze(chat=MESSAGES, model=chat_model(), tokenizer=chat_tokenizer(), syntax=False)
    chat.save(folder / "chat", figures=["page"])
    trees = treebank(folder / "trees.conllu", 30)
    profile = attnviz.profile_heads("tiny-gpt2", [trees], device="cpu", control=False)
    assert profile is not None
    profile.save(folder / "profile", figures=["page"])
    result_of("card").save(folder / "card", figures=["page"])
    driver = chromium(folder, 1600)
    yield Page(driver, folder)
    driver.quit()
