"""Chats: what the template makes of messages, where each of them stands, and what cannot be read."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import attnviz
from attnviz.errors import AttnvizError, CheckpointError, TextError, UsageError
from attnviz.inputs.chats import Chat, checked_messages, rendered_chat
from attnviz.models.checkpoint import from_loaded
from tests.support.chats import (
    ALTERNATING,
    CHATML,
    GLM_TOOLS,
    HERMES_TOOLS,
    LLAMA_TOOLS,
    MESSAGES,
    QWEN_TOOLS,
    SYSTEM_IN_USER,
    TRIMMED,
    WITHOUT_THOUGHTS,
    chat_model,
    chat_tokenizer,
)
from tests.support.encoder_decoders import sharp, unigram_tokenizer
from tests.support.models import bert_tokenizer, sharp_bert

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
    rendered = rendered_chat(chat_tokenizer(template), Chat(tuple(messages)))
    found = {name: rendered.text[first:last].strip() for name, (first, last) in rendered.places.items()}
    assert found == {"system": "user", "user": "user", "assistant": "the cat", "user#2": "the cat"}
    places = sorted(rendered.places.values())
    assert all(before[1] <= after[0] for before, after in pairwise(places))


@pytest.mark.parametrize(
    "roles", [["user#2", "user", "user"], ["user", "user", "user#2"], ["user#2", "user#2", "user", "user", "user"]]
)
def test_every_message_is_a_span_whatever_its_role_is_called(roles: list[str]) -> None:
    messages = [{"role": role, "content": f"the {word}"} for role, word in zip(roles, "cat dog house old new".split())]  # noqa: B905
    rendered = rendered_chat(chat_tokenizer(), Chat(tuple(messages)))
    found = [rendered.text[first:last] for first, last in rendered.places.values()]
    assert found == [message["content"] for message in messages]
    assert list(rendered.roles) == roles


def test_a_content_that_the_template_shortens_is_what_stands_in_the_text() -> None:
    thinking = [MESSAGES[1], {"role": "assistant", "content": "<think>the dog</think>it ran"}]
    rendered = rendered_chat(chat_tokenizer(WITHOUT_THOUGHTS), Chat(tuple(thinking)))
    first, last = rendered.places["assistant"]
    assert rendered.text[first:last] == "it ran"


def calling(arguments: Any, content: str | None = None, n_calls: int = 1) -> dict[str, Any]:
    function = {"name": "find", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"type": "function", "function": function}] * n_calls,
    }


def found_in(template: str, messages: list[dict[str, Any]]) -> dict[str, str]:
    rendered = rendered_chat(chat_tokenizer(template), Chat(checked_messages(messages)))
    return {name: rendered.text[first:last] for name, (first, last) in rendered.places.items()}


@pytest.mark.parametrize(
    ("template", "arguments", "called"),
    [
        (QWEN_TOOLS, {"who": "cat", "n": 3}, 'find", "arguments": {"who": "cat", "n": 3'),
        (QWEN_TOOLS, {"n": [1, {"n": 2}]}, 'find", "arguments": {"n": [1, {"n": 2}]'),
        (QWEN_TOOLS, {}, "find"),
        (QWEN_TOOLS, '{"n": 3}', 'find", "arguments": "{\\"n\\": 3}'),
        (LLAMA_TOOLS, {"who": "cat", "where": "cat"}, 'find", "parameters": {"who": "cat", "where": "cat'),
        (HERMES_TOOLS, {"who": "cat", "n": None}, 'who": "cat", "n": null}, "name": "find'),
        (GLM_TOOLS, {"who": "a\ncat"}, "find\n<arg_key>who</arg_key>\n<arg_value>a\ncat"),
    ],
)
def test_calls_of_tools_and_their_answers_are_messages(template: str, arguments: Any, called: str) -> None:
    """A call is the stretch from its name to its arguments, in the order in which the template writes them."""
    asked = {"role": "user", "content": "where is the cat"}
    messages = [asked, calling(arguments), {"role": "tool", "content": "the cat ran"}, MESSAGES[2], asked]
    expected = {"user": asked["content"], "assistant": called, "tool": "the cat ran"}
    expected |= {"assistant#2": MESSAGES[2]["content"], "user#2": asked["content"]}
    assert found_in(template, messages) == expected


def test_several_calls_and_a_text_are_one_message_and_each_answer_is_one() -> None:
    answers = [{"role": "tool", "content": "3"}] * 2
    found = found_in(QWEN_TOOLS, [MESSAGES[1], calling({"n": 3}, "it ran", 2), *answers])
    whole = '<tool_call>\n{"name": "find", "arguments": {"n": 3}}\n</tool_call>' * 2
    assert found["assistant"] == f"it ran{whole}".removesuffix("}}\n</tool_call>")
    assert (found["tool"], found["tool#2"]) == ("3", "3")
    escaped = found_in(LLAMA_TOOLS, [MESSAGES[1], calling({"n": 3}), {"role": "tool", "content": 'a "cat"\n'}])
    assert escaped["tool"] == 'a \\"cat\\"\\n'


def test_spans_of_a_chat_with_tools_are_measured() -> None:
    messages = [MESSAGES[1], calling({"who": "dog"}), {"role": "tool", "content": "the dog ran"}]
    tokenizer = chat_tokenizer(QWEN_TOOLS)
    model = chat_model(n_positions=160)
    analysis = attnviz.analyze(chat=messages, model=model, tokenizer=tokenizer, syntax=False)
    assert list(analysis.tokens.ids) == tokenizer.apply_chat_template(messages, tokenize=True)["input_ids"]
    assert spans_of(analysis)["tool"] == "the dog ran"


PARTS = [{"type": "text", "text": "the cat "}, {"type": "text", "text": "saw"}]


@pytest.mark.parametrize(
    ("template", "parts", "text"),
    [
        (LLAMA_TOOLS, PARTS, "the catsaw"),
        (LLAMA_TOOLS, PARTS[1:], "saw"),
        (CHATML, PARTS[1:], "saw"),
        (TRIMMED, PARTS[1:], "saw"),
    ],
)
def test_parts_of_type_text_are_read(template: str, parts: Any, text: str) -> None:
    found = found_in(template, [{"role": "user", "content": parts}, MESSAGES[2]])
    assert found == {"user": text, "assistant": MESSAGES[2]["content"]}


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio"])
def test_parts_of_other_types_are_named(kind: str) -> None:
    with pytest.raises(TextError, match=f"message 2.*{kind}"):
        checked_messages([MESSAGES[0], {"role": "user", "content": [*PARTS, {kind: "data", "type": kind}]}])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHATML, calling({"n": 3}, "it ran")),  # a template that leaves out what is called
        (CHATML, calling({"n": 3})),
        (LLAMA_TOOLS, calling({"n": 3}, n_calls=2)),
        (CHATML, {"role": "user", "content": PARTS}),
    ],
)
def test_what_a_template_does_not_show_is_refused(template: str, message: dict[str, Any]) -> None:
    with pytest.raises(TextError):
        found_in(template, [MESSAGES[1], message])


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool_calls": {"function": {"name": "find"}}},
        {"tool_calls": [{"function": {"arguments": {}}}]},
        {"tool_calls": ["find"]},
        {"content": []},
        {"content": {"n": 3}},
        {"content": [{"type": "text"}]},
        {"content": ["text"]},
        {"content": [PARTS[0], {"type": "text", "text": "\ud800"}]},
    ],
)
def test_messages_of_other_forms_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TextError, match="message 1"):
        checked_messages([{"role": "assistant"} | wrong])


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


def test_an_encoder_reads_an_answer_as_it_reads_all_else() -> None:
    tokenizer = bert_tokenizer()
    tokenizer.chat_template = CHATML
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "the dog"}]
    analysis = attnviz.analyze(chat=messages, model=sharp_bert(), tokenizer=tokenizer, syntax=False)
    assert [span.name for span in analysis.spans.spans] == ["user", "assistant"]
    assert analysis.spans.layout.first_new is None
