"""Chats: what the template makes of messages, where each of them stands, and what cannot be read."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import attnviz
from attnviz.errors import AttnvizError, CheckpointError, TextError, UsageError
from attnviz.models.chats import rendered_chat
from attnviz.models.checkpoint import from_loaded
from tests.support.chats import (
    ALTERNATING,
    CHATML,
    MESSAGES,
    SYSTEM_IN_USER,
    TRIMMED,
    WITHOUT_THOUGHTS,
    chat_model,
    chat_tokenizer,
)
from tests.support.encoder_decoders import sharp, unigram_tokenizer

CONTROL = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}


def analysed(chat: Any, tokenizer: PreTrainedTokenizerFast | None = None, **options: Any) -> attnviz.Analysis:
    return attnviz.analyze(
        chat=chat, model=chat_model(), tokenizer=tokenizer or chat_tokenizer(), syntax=False, **options
    )


def spans_of(analysis: attnviz.Analysis) -> dict[str, str]:
    offsets = analysis.tokens.offsets
    ends = {span.name: (offsets[span.tokens[0]][0], offsets[span.tokens[-1]][1]) for span in analysis.spans.spans}
    return {name: analysis.text[first:last].strip() for name, (first, last) in ends.items()}


def test_the_model_reads_what_the_template_makes_of_the_messages() -> None:
    tokenizer = chat_tokenizer(TRIMMED)
    analysis = analysed(MESSAGES, tokenizer)
    assert list(analysis.tokens.ids) == tokenizer.apply_chat_template(MESSAGES, tokenize=True)["input_ids"]
    assert analysis.tokens.ids.count(tokenizer.bos_token_id) == 1
    pairs = zip(analysis.tokens.ids, analysis.tokens.special, strict=True)
    assert {tokenizer.decode([token]) for token, special in pairs if special} == CONTROL
    assert spans_of(analysis) == {message["role"]: message["content"] for message in MESSAGES}


def test_control_tokens_of_a_chat_are_spans() -> None:
    for span, number in (("<|im_end|>#2", 1), ("x=<|im_end|>#3", 2)):
        analysis = analysed(MESSAGES, spans=[span])
        ends = [at for at, label in enumerate(analysis.tokens.labels) if label == "<|im_end|>"]
        assert analysis.spans.spans[-1].tokens == (ends[number],)
    for unclear in ("<|im_end|>", "<|im_end|>#4"):
        with pytest.raises(UsageError, match=r"<\|im_end\|>#3"):
            analysed(MESSAGES, spans=[unclear])


@pytest.mark.parametrize("wrong", [{"content": "half \ud800"}, {"role": "us\udc00er"}, {"role": " "}])
def test_a_message_without_a_role_or_with_half_a_character_is_named_with_its_file(
    wrong: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([MESSAGES[0], MESSAGES[1] | wrong]), encoding="utf-8")
    with pytest.raises(TextError, match="message 2") as raised:
        analysed(file)
    assert file.name in str(raised.value)


@pytest.mark.parametrize("template", [CHATML, TRIMMED, SYSTEM_IN_USER, WITHOUT_THOUGHTS])
def test_messages_are_found_whatever_the_template_does(template: str) -> None:
    messages = [
        {"role": "system", "content": "  user\n"},
        {"role": "user", "content": "user"},
        {"role": "assistant", "content": "the cat"},
        {"role": "user", "content": "the cat"},
    ]
    rendered = rendered_chat(chat_tokenizer(template), messages)
    found = {name: rendered.text[first:last].strip() for name, (first, last) in rendered.messages.items()}
    assert found == {"system": "user", "user": "user", "assistant": "the cat", "user#2": "the cat"}
    places = sorted(rendered.messages.values())
    assert all(before[1] <= after[0] for before, after in pairwise(places))


@pytest.mark.parametrize(
    "roles", [["user#2", "user", "user"], ["user", "user", "user#2"], ["user#2", "user#2", "user", "user", "user"]]
)
def test_every_message_is_a_span_whatever_its_role_is_called(roles: list[str]) -> None:
    messages = [{"role": role, "content": f"the {word}"} for role, word in zip(roles, "cat dog house old new".split())]  # noqa: B905
    rendered = rendered_chat(chat_tokenizer(), messages)
    found = [rendered.text[first:last] for first, last in rendered.messages.values()]
    assert found == [message["content"] for message in messages]
    assert list(rendered.roles) == roles


def test_a_content_that_the_template_shortens_is_what_stands_in_the_text() -> None:
    thinking = [MESSAGES[1], {"role": "assistant", "content": "<think>the dog</think>it ran"}]
    rendered = rendered_chat(chat_tokenizer(WITHOUT_THOUGHTS), thinking)
    first, last = rendered.messages["assistant"]
    assert rendered.text[first:last] == "it ran"


def test_a_question_waits_for_its_answer_which_the_model_writes() -> None:
    analysis = analysed(MESSAGES[:2], generate=3)
    assert analysis.text.endswith("<|im_start|>assistant\n")
    new = len(analysis.tokens) - 3
    assert [span.name for span in analysis.spans.spans] == ["system", "user", "prompt", "new"]
    assert analysis.spans.spans[-1].tokens == tuple(range(new, new + 3))


def test_a_file_has_one_chat(tmp_path: Path) -> None:
    one = tmp_path / "one.json"
    one.write_text(json.dumps({"messages": MESSAGES}), encoding="utf-8")
    assert analysed(one).text == analysed(MESSAGES).text


@pytest.mark.parametrize(
    ("chat", "word"),
    [
        ([], "messages"),
        ("nowhere.json", "nowhere"),
        ([MESSAGES[0], {"role": "user"}], "message 2"),
        ([{"role": "user", "content": " "}], "message 1"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 1"),
        ("broken.jsonl", "broken.jsonl:2"),
        ("empty.jsonl", "0 chats"),
        ("two.jsonl", "2 chats"),
    ],
)
def test_what_is_no_chat(chat: Any, word: str, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text(f"{json.dumps(MESSAGES)}\n{{\n", encoding="utf-8")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    (tmp_path / "two.jsonl").write_text(f"{json.dumps(MESSAGES)}\n" * 2, encoding="utf-8")
    with pytest.raises(AttnvizError, match=word):
        analysed(tmp_path / chat if isinstance(chat, str) else chat)


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        (None, CheckpointError),
        (ALTERNATING, TextError),
        ("{{ messages[0]['content'].nowhere.more }}", TextError),
        ("always the same", TextError),
    ],
)
def test_a_template_that_fails_is_one_line(template: str | None, kind: type[AttnvizError]) -> None:
    with pytest.raises(kind) as error:
        analysed(MESSAGES, chat_tokenizer(template))
    assert "\n" not in str(error.value)


def test_what_a_chat_cannot_be_combined_with() -> None:
    for given in ({"text": "a text", "chat": MESSAGES}, {}):
        with pytest.raises(UsageError):
            attnviz.analyze(**given)
    with pytest.raises(UsageError, match="--pair"):
        analysed(MESSAGES, pair="more")
    with pytest.raises(TextError, match="answer"):
        analysed(MESSAGES, generate=2)
    with pytest.raises(UsageError, match="encoder-decoder"):
        attnviz.analyze(chat=MESSAGES, model=sharp("t5"), tokenizer=unigram_tokenizer())


def test_a_chat_that_is_cut_keeps_the_messages_before() -> None:
    checkpoint = from_loaded(chat_model(n_positions=24), chat_tokenizer())
    analysis = attnviz.analyze(chat=MESSAGES, model=checkpoint, truncate=True, syntax=False)
    assert "assistant" not in spans_of(analysis)
    assert analysis.spans.layout.first_new is None
