"""Chats: their messages, rendered by the tokenizer's own template, and where each message stands in the text."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from attnviz.arguments import as_found
from attnviz.errors import CheckpointError, TextError
from attnviz.inputs.templates import check_rendered, limited_template
from attnviz.models.libraries import calling_transformers

Message = Mapping[str, Any]

_EXPECTED = '[{"role": "user", "content": "…"}, …]'
_ANSWERING = "assistant"
_HALF = re.compile("[\ud800-\udfff]")  # of a character, which JSON can write
# Stand for a message's content when the template is rendered a second time: private characters, in no text. The second
# is before the name of a function that is called, and a number stands for an argument that is no text.
_MARK, _CALL, _NUMBER = "\ue000{}\ue001", "\ue002", 10**30


@dataclass(frozen=True)
class Chat:
    """The messages of a chat, and the ``file`` that they were read from, if any."""

    messages: tuple[Message, ...]
    file: Path | None = None


@dataclass(frozen=True)
class RenderedChat(Chat):
    """A chat as the model reads it."""

    text: str = ""  # as the template renders it, with its control tokens
    # by name (``system``, ``user``, ``user#2``), the first and past-the-last character of its content
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(message["role"] for message in self.messages)

    @property
    def answered(self) -> bool:  # whether the last message is the assistant's
        return self.roles[-1] == _ANSWERING


def free_name(name: str, taken: Container[str]) -> str:
    """The name, or where it is taken the first of ``name#2``, ``name#3`` … that is not."""
    numbered = (f"{name}#{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)


def checked_messages(chat: object, where: str = "the chat") -> tuple[Message, ...]:
    """The messages of a chat; TextError, with ``where``, unless each has a role and a content of text."""
    messages = chat.get("messages") if isinstance(chat, Mapping) else chat
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise TextError(f"{where}: expected a list of messages, {_EXPECTED}, found {as_found(chat)}.")
    for number, message in enumerate(messages, 1):
        _check_message(message, f"{where}, message {number}")
    return tuple(messages)


def _check_message(message: object, place: str) -> None:
    given: Mapping[str, Any] = message if isinstance(message, Mapping) else {}
    content, calls = given.get("content") or "", given.get("tool_calls") or []
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in parts]
    others = [kind for kind in kinds if kind != "text"]
    if others:
        raise TextError(f"{place}: expected a text, or parts of type text, found a part of type {as_found(others[0])}.")
    functions = map(_function, calls) if isinstance(calls, list) else [{}]
    if not all(isinstance(function.get("name"), str) for function in functions):
        expected = '[{"function": {"name": "…", "arguments": {…}}}]'
        raise TextError(f"{place}: expected tool_calls as {expected}, found {as_found(calls)}.")
    texts: list[Any] = [given.get("role"), *(part.get("text") for part in parts)]
    filled = [isinstance(text, str) and text.strip() != "" for text in texts]
    if not all(isinstance(text, str) for text in texts) or not filled[0] or not (calls or any(filled[1:])):
        raise TextError(f'{place}: expected {{"role": "user", "content": "…"}} with a text, found {as_found(message)}.')
    if any(_HALF.search(text) for text in texts):
        raise TextError(f"{place}: expected Unicode, found half a character: {as_found(message)}.")


def _function(call: Any) -> Mapping[str, Any]:
    """The name and arguments of a call; some templates take them with no object around them."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def message_texts(message: Message) -> list[str]:
    """The text of a message, or that of each of its parts; none where it only calls tools."""
    content = message.get("content") or []
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def rendered_chat(tokenizer: Any, chat: Chat) -> RenderedChat:
    """Render a chat by the tokenizer's chat template, which then waits for an answer unless the chat ends with one.

    Raises:
        CheckpointError: the tokenizer has no chat template.
        TextError: the template refuses the messages, or changes one so that it cannot be found again.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise CheckpointError(
            "this model's tokenizer has no chat template; expected a chat model, or a text instead of a chat."
        )
    try:
        return _rendered(tokenizer, chat)
    except TextError:
        joined = tuple(_without_parts(message) for message in chat.messages)
        if joined == chat.messages:
            raise
    return replace(_rendered(tokenizer, Chat(joined)), messages=chat.messages, file=chat.file)


def _without_parts(message: Message) -> Message:
    """The message with one text in place of one part: some templates take only the former."""
    texts = message_texts(message)
    return {**message, "content": texts[0]} if len(texts) == 1 else message


def _rendered(tokenizer: Any, chat: Chat) -> RenderedChat:
    messages, known = chat.messages, RenderedChat(chat.messages, chat.file)

    def render(given: Sequence[Message]) -> str:
        refused = "the tokenizer's chat template refuses these messages"
        with calling_transformers(refused, TextError), limited_template():
            text = tokenizer.apply_chat_template(list(given), tokenize=False, add_generation_prompt=not known.answered)
        return check_rendered(text)

    text = render(messages)
    spans = _between(text, render([_marked(message, i) for i, message in enumerate(messages)]), messages)
    places = dict[str, tuple[int, int]]()
    for role, span in zip(known.roles, spans, strict=True):
        places[free_name(role, places)] = span
    return replace(known, text=text, places=places)


def _marked(message: Message, number: int) -> Message:
    """The message with marks in place of its texts and the names of called functions, and around their arguments."""
    mark = _MARK.format(number)
    marked, content = dict(message), message.get("content")
    if isinstance(content, list):
        marked["content"] = [{**part, "text": mark} for part in content]
    elif content and content.strip():
        marked["content"] = mark
    if message.get("tool_calls"):
        marked["tool_calls"] = [_marked_call(call, mark, _NUMBER + number) for call in message["tool_calls"]]
    return marked


def _marked_call(call: Mapping[str, Any], mark: str, number: int) -> Mapping[str, Any]:
    function = {**_function(call), "name": _CALL + mark}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        function["arguments"] = mark
    elif isinstance(arguments, Mapping) and arguments:
        (_, *keys), (*values, last) = arguments, arguments.values()
        values.append(mark if isinstance(last, str) else number)
        function["arguments"] = dict(zip([mark, *keys], values, strict=True))
    return {**call, "function": function} if "function" in call else function


def _between(text: str, marked: str, messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Where each message stands in a text, found by what the template writes around its marks.

    A message of several parts or calls is the stretch from its first mark to its last.
    """
    lost = list[int]()
    for number, message in enumerate(messages):
        mark, calls = _MARK.format(number), message.get("tool_calls") or []
        marked = marked.replace(str(_NUMBER + number), mark)
        n_most = len(message_texts(message)) + 3 * len(calls)
        if not 0 < marked.count(mark) <= n_most or (calls and _CALL + mark not in marked):
            lost.append(number)
        marked = re.sub(f"{mark}.*{mark}", mark, marked.replace(_CALL + mark, mark), flags=re.DOTALL)
    spans = dict[int, tuple[int, int]]()
    end = 0
    pieces = re.split(_MARK.format("([0-9]+)"), marked)
    for before, digits, follows in zip(pieces[::2], pieces[1::2], pieces[2::2], strict=False):
        start, message = end + len(before), messages[int(digits)]
        texts = [] if message.get("tool_calls") else message_texts(message)
        content = texts[0] if len(texts) == 1 else ""
        forms = (content, content.strip(), content.rstrip(), content.lstrip())
        shown = next((form for form in forms if form and text.startswith(form + follows, start)), None)
        end = start + len(shown) if shown else text.find(follows, start) if follows else len(text)
        if end <= start or not text.startswith(before, start - len(before)):
            lost.append(int(digits))
            break
        spans[int(digits)] = start, end
    if lost:
        raise TextError(
            f"the tokenizer's chat template changes message {lost[0] + 1} so that it cannot be found in the text; "
            "render the chat yourself, and name the spans of that text with --span (spans=...)."
        )
    return [spans[number] for number in range(len(messages))]
