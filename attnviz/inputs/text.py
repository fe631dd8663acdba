"""Texts, pairs of texts and chats as a model reads them: one, or many at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from attnviz.errors import CorpusError, TextError
from attnviz.inputs.chats import Chat, RenderedChat, rendered_chat
from attnviz.inputs.encoding import encodings, prompt_of
from attnviz.inputs.lines import naming_row
from attnviz.inputs.prompt import Prompt, drawn_ids, read_prompt
from attnviz.inputs.reading import Text
from attnviz.inputs.spans import message_spans
from attnviz.inputs.tokenized import TokenIds
from attnviz.inputs.words import Encoding
from attnviz.models.checkpoint import Checkpoint


def tokenize(
    checkpoint: Checkpoint, text: str, pair: str | None = None, truncate: bool = False, target: bool = False
) -> Prompt:
    """The prompt of a text, or of a pair; with ``target`` of what a decoder is to predict.

    Raises:
        TextError: no text, blank, not valid Unicode, no tokens left, too long for the model and not to be cut
            (``truncate``), or a pair without a separator.
        CheckpointError: the tokenizer is not a fast one, or does not belong to the model.
    """
    return _read(checkpoint, Text(text, pair=pair), truncate, target)


@read_prompt.register
def _(given: str, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:
    return _read(checkpoint, Text(given), truncate)


@read_prompt.register
def _(given: Chat, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:
    return _read(checkpoint, Text("", chat=given), truncate)


@read_prompt.register
def _(given: Text, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:
    return _read(checkpoint, given, truncate)


def _read(checkpoint: Checkpoint, text: Text, truncate: bool, target: bool = False) -> Prompt:
    """The prompt of one text; errors do not name its place, which the caller does."""
    alone = _rendered(replace(text, place=None), checkpoint)
    if not alone.ids:
        _check_text(alone.text, "target" if target else "text")
        if alone.pair is not None:
            _check_text(alone.pair, "pair")
    [prompt] = encode(checkpoint, [alone], truncate=truncate, target=target)
    return replace(prompt, source=replace(prompt.source, place=text.place))


def encode(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    skipped: Callable[[Text, str], None] | None = None,
    truncate: bool = False,
    offer: str = "shorten it, or pass --truncate (truncate=True) to cut it there",
    target: bool = False,
) -> list[Prompt]:
    """The prompts of several texts, chats (which are rendered) or ids, with the tokens of their spans.

    ``skipped`` is called with each text that is left out, too long for the model or without tokens, and the reason;
    without it that is a TextError. ``truncate`` cuts texts that are too long; of those of no file the reason ends with
    ``offer``, what can be done about them.
    """
    prompts = list[Prompt]()
    for text, whole in _encoded(checkpoint, texts, target):
        n, most = len(text.ids) if whole is None else len(whole.ids), checkpoint.positions
        encoding = whole
        if whole is not None and truncate and n > most:
            encoding = _cut(checkpoint, text, whole, target)
        n_left = n if encoding is None else len(encoding.ids)
        if n_left > most:
            why = f"it has {n_left} tokens, but the model has {most} positions{checkpoint.limit}"
            if text.given_alone:
                why += f"; {offer}"
        elif encoding is not None and _lost(encoding, text):
            why = "no tokens are left of it" if text.pair is None else "no tokens are left of it or of its pair"
        else:
            prompt = _prompt(checkpoint, text, encoding, n - n_left)
            if text.answer is None or all(prompt.members):
                prompts.append(prompt)
                continue
            why = "the model has no token for its pronoun or one of its names"
        if skipped is None:
            raise TextError(f"{text.place or ('the target' if target else 'the text')}: {why}.")
        skipped(text, why)
    return prompts


def _encoded(checkpoint: Checkpoint, texts: Sequence[Text], target: bool) -> Iterator[tuple[Text, Encoding | None]]:
    """Each text with its encoding, or None of ids; texts of one kind that stand together are encoded at once."""
    read = [rendered(text, checkpoint) if text.chat else text for text in texts]
    for (ids, chats, pairs), group in groupby(
        read, lambda text: (bool(text.ids), bool(text.chat), text.pair is not None)
    ):
        some = list(group)
        if ids:
            yield from ((text, None) for text in some)
            continue
        seconds = [str(text.pair) for text in some] if pairs else None
        of_some = encodings(checkpoint, [text.text for text in some], seconds, rendered=chats, target=target)
        yield from zip(some, of_some, strict=True)


def _cut(checkpoint: Checkpoint, text: Text, whole: Encoding, target: bool) -> Encoding:
    """The encoding of a text that is too long, cut to the model's positions.

    The library takes hours and gigabytes to truncate a long pair at once: texts are cut roughly first.
    """
    rough = list[str]()
    for segment, part in enumerate([text.text] if text.pair is None else [text.text, text.pair]):
        ends = [end for (_, end), of in zip(whole.offsets, whole.sequence_ids, strict=True) if of == segment]
        n = 2 * checkpoint.positions + 100
        rough.append(part if len(ends) <= n else part[: ends[n - 1]])
    pairs = None if text.pair is None else rough[1:]
    return encodings(checkpoint, rough[:1], pairs, True, text.chat is not None, target)[0]


def _lost(encoding: Encoding, text: Text) -> bool:
    """Whether one of the segments has no token that is not special."""
    return len({segment for segment in encoding.sequence_ids if segment is not None}) < 1 + (text.pair is not None)


def _prompt(checkpoint: Checkpoint, text: Text, encoding: Encoding | None, n_cut: int) -> Prompt:
    if encoding is not None:
        prompt = prompt_of(checkpoint, encoding, text)
        messages = message_spans(prompt, text.chat.places) if isinstance(text.chat, RenderedChat) else ()
        members = prompt.overlapping(text.spans) if text.spans else ()
        return replace(prompt, truncated=n_cut, members=members, messages=tuple(messages))
    if not text.ids_given:
        return drawn_ids(text.ids, text)
    with naming_row(text.place):
        prompt = read_prompt(TokenIds(text.ids), checkpoint)
    return replace(prompt, source=replace(text, text=prompt.source.text, pair=prompt.source.pair))


def rendered(text: Text, checkpoint: Checkpoint) -> Text:
    """A chat with the text that the tokenizer's template makes of it, else CorpusError; ids with what they spell."""
    if text.ids_given and len(text.ids) <= checkpoint.positions:
        with naming_row(text.place):
            return replace(text, text=read_prompt(TokenIds(text.ids), checkpoint).source.text)
    try:
        return _rendered(text, checkpoint)
    except TextError as error:
        raise CorpusError(f"{text.place}: {error}") from error


def _rendered(text: Text, checkpoint: Checkpoint) -> Text:
    if text.chat is None or isinstance(text.chat, RenderedChat):
        return text
    chat = rendered_chat(checkpoint.tokenizer, text.chat)
    return replace(text, text=chat.text, chat=chat)


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise TextError(f"expected the {name} as a string, found {type(text).__name__}.")
    if not text.strip():
        raise TextError(f"the {name} is {'blank' if text else 'empty'}; expected at least one word.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        character = text[error.start]
        is_byte = "\udc80" <= character <= "\udcff"
        byte = character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")[0]
        raise TextError(
            f"the {name} is not valid UTF-8: found byte 0x{byte:02x} at character {error.start}; "
            "expected text encoded as UTF-8."
        ) from error
