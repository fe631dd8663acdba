"""Chats: their messages, rendered by the tokenizer's own template, and where each message stands in the text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.arguments import as_found
from attnviz.errors import CheckpointError, TextError
from attnviz.models.libraries import calling_transformers
from attnviz.models.spans import free_name
from attnviz.models.templates import check_rendered, limited_template

Message = Mapping[str, Any]

_EXPECTED = '[{"role": "user", "content": "…"}, …]'
_ANSWERING = "assistant"
_HALF = re.compile("[\ud800-\udfff]")  # of a character, which JSON can write
# Stands for a message's content when the template is rendered a second time: private characters, in no text.
_MARK = "\ue000{}\ue001"


@dataclass(frozen=True)
class Chat:
    """The messages of a chat, and the ``file`` that they were read from, if any."""

    messages: tuple[Message, ...]
    file: Path | None = None


@dataclass(frozen=True)
class RenderedChat:
    """A chat as the model reads it."""

    text: str  # as the template renders it, with its control tokens
    # by name (``system``, ``user``, ``user#2``), the first and past-the-last character of its content
    messages: dict[str, tuple[int, int]]
    roles: tuple[str, ...]  # of each of these
    answered: bool  # whether the last message is the assistant's


def checked_messages(chat: object, where: str = "the chat") -> tuple[Message, ...]:
    """The messages of a chat; TextError, with ``where``, unless each has a role and a content of text."""
    messages = chat.get("messages") if isinstance(chat, Mapping) else chat
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise TextError(f"{where}: expected a list of messages, {_EXPECTED}, found {as_found(chat)}.")
    for number, message in enumerate(messages, 1):
        texts = [message.get(key) for key in ("role", "content")] if isinstance(message, Mapping) else [None]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise TextError(
                f'{where}, message {number}: expected {{"role": "user", "content": "…"}} with a text, '
                f"found {as_found(message)}."
            )
        if any(_HALF.search(message[key]) for key in ("role", "content")):
            raise TextError(
                f"{where}, message {number}: expected Unicode, found half a character: {as_found(message)}."
            )
    return tuple(messages)


def rendered_chat(tokenizer: Any, messages: Sequence[Message]) -> RenderedChat:
    """Render messages by the tokenizer's chat template, which then waits for an answer unless the chat ends with one.

    Raises:
        CheckpointError: the tokenizer has no chat template.
        TextError: the template refuses the messages, or changes one so that it cannot be found again.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise CheckpointError(
            "this model's tokenizer has no chat template; expected a chat model, or a text instead of a chat."
        )
    answered = messages[-1]["role"] == _ANSWERING

    def render(contents: Iterable[str]) -> str:
        given = [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]
        refused = "the tokenizer's chat template refuses these messages"
        with calling_transformers(refused, TextError), limited_template():
            text = tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=not answered)
        return check_rendered(text)

    contents = [message["content"] for message in messages]
    marks = [_MARK.format(number) for number in range(len(messages))]
    text = render(contents)
    spans = _between(text, render(marks), contents, marks)
    roles = tuple(message["role"] for message in messages)
    by_name = dict[str, tuple[int, int]]()
    for role, span in zip(roles, spans, strict=True):
        by_name[free_name(role, by_name)] = span
    return RenderedChat(text, by_name, roles, answered)


def _between(text: str, marked: str, contents: Sequence[str], marks: Sequence[str]) -> list[tuple[int, int]]:
    """Where each content stands in a text, found by what the template writes around its mark."""
    spans = dict[int, tuple[int, int]]()
    end = after = 0
    lost = [number for number, mark in enumerate(marks) if marked.count(mark) != 1]
    order = sorted(range(len(marks)), key=lambda number: marked.find(marks[number]))
    for place, number in enumerate(order):
        if lost:
            break
        before = marked[after : marked.index(marks[number])]
        after = marked.index(marks[number]) + len(marks[number])
        follows = marked[after : marked.index(marks[order[place + 1]]) if place + 1 < len(order) else None]
        start = end + len(before)
        content = contents[number]
        forms = (content, content.strip(), content.rstrip(), content.lstrip())
        shown = next((form for form in forms if text.startswith(form + follows, start)), None)
        end = text.find(follows, start) if shown is None else start + len(shown)
        if end <= start or not text.startswith(before, start - len(before)):
            lost = [number]
        spans[number] = start, end
    if lost:
        raise TextError(
            f"the tokenizer's chat template changes message {lost[0] + 1} so that it cannot be found in the text; "
            "render the chat yourself, and name the spans of that text with --span (spans=...)."
        )
    return [spans[number] for number in range(len(marks))]
