"""Every row of the table of what cannot be combined holds, names its options, and holds for nothing else."""

from functools import cache
from inspect import signature
from typing import Any

import pytest

import attnviz
from attnviz.errors import AttnvizError
from attnviz.inputs import refusals
from attnviz.inputs.refusals import REFUSED, Refusal, option_name, refuse, without
from attnviz.models.checkpoint import Checkpoint, from_loaded
from tests.support.encoder_decoders import sharp, unigram_tokenizer
from tests.support.families import checkpoint_of
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

OPTIONS = {
    "no_syntax",
    "text_column",
    "pair_column",
    "treebanks",
    *signature(attnviz.analyze).parameters,
    *signature(attnviz.analyze_each).parameters,
    *signature(attnviz.ablate).parameters,
    *signature(attnviz.patch).parameters,
    *signature(attnviz.cards).parameters,
    *signature(attnviz.check).parameters,
}
MISSING = {without(name): name for name in OPTIONS}
INPUTS = (
    *(refusals.SEVERAL_TEXTS, refusals.OF_TOKENIZER, refusals.OTHER_KIND, refusals.NOT_PARSED),
    *(refusals.TABLE_OF_PAIRS, refusals.NO_CORPUS, refusals.GAP_TABLE),
)
GIVEN: dict[str, Any] = {"no_syntax": True, "words": True, "truncate": True, "queries": 0}


@cache
def model_of_kind(kind: str) -> Checkpoint:
    """A model of this kind."""
    if kind == refusals.ENCODER_DECODER:
        tokenizer = unigram_tokenizer()
        return from_loaded(sharp("bart", len(tokenizer)), tokenizer)
    if kind == refusals.NO_WORDS:
        return checkpoint_of("esm")
    if kind == refusals.NO_ENCODER:
        return from_loaded(sharp_gpt2(), gpt2_tokenizer())
    return from_loaded(sharp_bert(), bert_tokenizer())


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.option} {row.beside}")
def test_every_row_is_refused_by_its_class_and_names_its_options(row: Refusal) -> None:
    assert row.option in OPTIONS
    options = {row.option: GIVEN.get(row.option, "x")}
    read = row.beside if row.beside in INPUTS else ""
    other = MISSING.get(row.beside, row.beside)
    of_model = other not in OPTIONS and not read
    if other in OPTIONS:
        options[other] = None if row.beside in MISSING else GIVEN.get(other, "x")
    checkpoint = model_of_kind(row.beside) if of_model else None
    with pytest.raises(AttnvizError) as refused:
        refuse(options, checkpoint, read)
    assert type(refused.value) is row.error
    assert option_name(row.option) in str(refused.value)
    assert other not in OPTIONS or option_name(other) in str(refused.value)
    refuse({row.option: options[row.option]})  # alone, and of no model


@pytest.mark.parametrize("value", [None, False, (), {}, []])
def test_what_was_not_given_is_not_refused(value: Any) -> None:
    nothing = dict.fromkeys(OPTIONS, value)
    for kind in (refusals.ENCODER_DECODER, refusals.NO_WORDS, refusals.ONE_TEXT):
        refuse(nothing, model_of_kind(kind), refusals.SEVERAL_TEXTS)
    with pytest.raises(AttnvizError):  # an empty text and position 0 are given
        refuse({"target": ""}, model_of_kind(refusals.ONE_TEXT))
    with pytest.raises(AttnvizError):
        refuse({"queries": 0}, model_of_kind(refusals.ENCODER_DECODER))


def test_the_options_of_a_model_that_takes_them_pass() -> None:
    refuse({"target": "x", "words": True}, model_of_kind(refusals.ENCODER_DECODER))
    refuse({"contacts": "x", "pair": "x"}, model_of_kind(refusals.NO_WORDS))
    refuse({"queries": 0, "spans": {"a": "b"}, "chat": "x"}, model_of_kind(refusals.NO_ENCODER))
