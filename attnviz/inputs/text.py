"""Texts, pairs of texts and chats as a model reads them: one, or many at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from attnviz.errors import CorpusError, TextError
from attnviz.inputs.chats import Chat, RenderedChat, rendered_chat
from attnviz.inputs.encoding import encodings, prompt_of
from attnviz.inputs.lines import naming_row
from attnviz.inputs.prompt import Prompt, Span, Text, drawn_ids, read_prompt
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
def _(given: str | Chat | Text, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:
    text = Text("", chat=given) if isinstance(given, Chat) else given
    return _read(checkpoint, text if isinstance(text, Text) else Text(text), truncate)


def _read(checkpoint: Checkpoint, text: Text, truncate: bool, target: bool = False) -> Prompt:
    """The prompt of one text; errors do not name its place, which the caller does."""
    alone = _rendered(replace(text, place=None), checkpoint)
    if not alone.ids:
        _check_text(alone.text, "target" if target else "text")
        if alone.pair is not None:
            _check_text(alone.pair, "pair")
    [prompt] = encode(checkpoint, [alone], truncate=truncate, target=target, labelled=True)
    return replace(prompt, source=replace(prompt.source, place=text.place))


def encode(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    skipped: Callable[[Text, str], None] | None = None,
    truncate: bool = False,
    offer: str = "shorten it, or pass --truncate (truncate=True) to cut it there",
    target: bool = False,
    labelled: bool = False,
) -> list[Prompt]:
    """The prompts of several texts, chats (which are rendered) or ids, with the tokens of their spans.

    ``skipped`` is called with each text that is left out, too long for the model or without tokens, and the reason;
    without it that is a TextError. ``truncate`` cuts texts that are too long; of those of no file the reason ends with
    ``offer``, what can be done about them. Only ``labelled`` ones have labels and words: no measure over many texts
    reads these, and they take twice as long as all else.
    """
    prompts = list[Prompt]()
    most = checkpoint.positions
    for text, encoding in _encoded(checkpoint, texts, truncate, target):
        n, n_texts, why = len(encoding.ids), 1 if text.pair is None else 2, ""
        if n > most:
            why = f"it has {n} tokens, but the model has {most} positions{checkpoint.limit}"
            why += f"; {offer}" if text.given_alone else ""
        elif not text.ids and len({*encoding.sequence_ids} - {None}) < n_texts:
            why = "no tokens are left of it" if n_texts == 1 else "no tokens are left of it or of its pair"
        if not why:
            prompt = _prompt(checkpoint, text, encoding, labelled)
            if text.answer is None or all(prompt.members):
                prompts.append(prompt)
                continue
            why = "the model has no token for its pronoun or one of its names"
        if skipped is None:
            raise TextError(f"{text.place or ('the target' if target else 'the text')}: {why}.")
        skipped(text, why)
    return prompts


def _encoded(
    checkpoint: Checkpoint, texts: Sequence[Text], truncate: bool, target: bool
) -> Iterator[tuple[Text, Encoding]]:
    """Each text with its encoding, of ids without more; texts of one kind that stand together are encoded at once."""

    def encoded(some: Sequence[Text], cut: bool = False) -> list[Encoding]:
        pairs = None if some[0].pair is None else [str(text.pair) for text in some]
        return encodings(checkpoint, [text.text for text in some], pairs, cut, some[0].chat is not None, target)

    read = [rendered(text, checkpoint) if text.chat else text for text in texts]
    for _, group in groupby(read, key=lambda text: (bool(text.ids), bool(text.chat), text.pair is None)):
        some = list(group)
        if some[0].ids:
            yield from ((text, Encoding(list(text.ids), [], [], [], [], [])) for text in some)
            continue
        for text, whole in zip(some, encoded(some), strict=True):
            n_cut = len(whole.ids) - checkpoint.positions if truncate else 0
            if n_cut > 0:
                [cut] = encoded([_cut(text, whole, 2 * checkpoint.positions + 100)], cut=True)
                yield text, replace(cut, truncated=len(whole.ids) - len(cut.ids))
            else:
                yield text, whole


def _cut(text: Text, whole: Encoding, n: int) -> Text:
    """The text and its pair after n tokens each: the library takes hours and gigabytes to cut a long pair at once."""
    parts = list[str | None]()
    for segment, part in enumerate((text.text, text.pair)):
        ends = [end for (_, end), of in zip(whole.offsets, whole.sequence_ids, strict=True) if of == segment]
        parts.append(part[: ends[n - 1]] if part is not None and len(ends) > n else part)
    return replace(text, text=str(parts[0]), pair=parts[1])


def _prompt(checkpoint: Checkpoint, text: Text, encoding: Encoding, labelled: bool) -> Prompt:
    if not text.ids:
        prompt = prompt_of(checkpoint, encoding, text, labelled)
        places = text.chat.places if isinstance(text.chat, RenderedChat) else {}
        of_messages = zip(places, prompt.overlapping([*places.values()]), strict=True)
        messages = tuple(Span(name, tokens) for name, tokens in of_messages if tokens)  # without those that were cut
        return replace(prompt, members=prompt.overlapping(text.spans), messages=messages)
    if not text.ids_given:
        return drawn_ids(text.ids, text)
    with naming_row(text.place):
        prompt = read_prompt(TokenIds(text.ids), checkpoint)
    read = replace(text, text=prompt.source.text, pair=prompt.source.pair)
    return replace(prompt, source=read, members=prompt.overlapping(text.spans))


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
