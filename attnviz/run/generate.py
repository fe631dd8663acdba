"""Greedy generation, one forward pass a token, for texts of a few dozen tokens."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnviz.errors import TextError
from attnviz.inputs.chats import RenderedChat
from attnviz.inputs.encoding import language_prefix, prompt_of_ids
from attnviz.inputs.prompt import Continuation, Prompt, TargetTokens, Text, shifted_right
from attnviz.inputs.refusals import SEVERAL_TEXTS, refuse
from attnviz.inputs.text import encode, tokenize
from attnviz.models.checkpoint import Checkpoint
from attnviz.run.transformers_compat import running_plainly
from attnviz.wording import counted, visible

MOST_NEW_TOKENS = 40  # the default limit of a generated target


def target_tokens(
    checkpoint: Checkpoint, source: Prompt, target: str | None, truncate: bool, max_new_tokens: int | None
) -> TargetTokens | None:
    """What the decoder of an encoder-decoder reads: the ``target``, or one generated greedily if it is None.

    None for other models. TextError: see :func:`attnviz.inputs.text.tokenize`.
    """
    if not checkpoint.stacks:
        return None
    longest = MOST_NEW_TOKENS if max_new_tokens is None else max_new_tokens
    if target is None:
        whole = generate_greedily(checkpoint, source, longest)
    else:
        whole = tokenize(checkpoint, target, None, truncate, target=True)
    start = int(checkpoint.config.decoder_start_token_id)
    label = visible(str(checkpoint.tokenizer.convert_ids_to_tokens(start) or f"id {start}"))
    predicted = whole.ids[whole.ids[0] == start :]
    read = shifted_right(whole, start, label)
    return TargetTokens(whole.source.text, read, target is None, predicted, max_new_tokens)


def with_targets(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    target: str | None,
    truncate: bool,
    max_new_tokens: int | None,
    tell: Callable[[int, int], None],
    warn: Callable[[str], None],
) -> Sequence[Text]:
    """Texts with targets for the decoder of an encoder-decoder: the given one, or what the model generates greedily.

    ``warn`` is called for each text of a corpus that is left out. UsageError for one target of several texts, TextError
    where a given text cannot be read, or the model cannot generate.
    """
    if not checkpoint.stacks:
        return texts
    n = len(texts)
    targets = list[Text]()
    if n > 1:
        refuse({"target": target}, None, SEVERAL_TEXTS)
    for number, text in enumerate(texts, 1):
        try:
            source = tokenize(checkpoint, text.text, truncate=truncate)
            read = target_tokens(checkpoint, source, target, truncate, max_new_tokens)
        except TextError as error:
            if text.given_alone or checkpoint.language_head is None:
                raise
            warn(f"{text.place}: left out: {error}")
        else:
            targets.append(replace(text, target=read))
        tell(number, n)
    return targets


def with_language(checkpoint: Checkpoint, sound: Prompt) -> Checkpoint:
    """The model with a tokenizer of the likeliest language of a sound (Radford et al. 2022, section 2.3), if of any."""
    if checkpoint.language_head is None or getattr(checkpoint.tokenizer, "language", "") is not None:
        return checkpoint
    tokenizer = copy.deepcopy(checkpoint.tokenizer)
    written = tokenizer.prefix_tokens[:1]
    _append(checkpoint, written, 1, sound)
    language = tokenizer.convert_ids_to_tokens(written[1]).strip("<|>")
    if written[1] in tokenizer.all_special_ids and len(language) < 4:  # <|en|>, <|haw|>
        tokenizer.set_prefix_tokens(language=language, task="transcribe")
    return replace(checkpoint, tokenizer=tokenizer)


def generate_greedily(checkpoint: Checkpoint, source: Prompt, max_new_tokens: int) -> Prompt:
    """Generate a target by the most likely next token that is not padding.

    Ends at the end token, after ``max_new_tokens``, or at the model's last position. TextError: the model has no
    language-modelling head, or writes nothing.
    """
    if checkpoint.language_head is None:
        raise TextError(
            "this checkpoint has no language-modelling head, so it cannot write a target; give one: --target (target=)."
        )
    config = checkpoint.config
    prefix = language_prefix(checkpoint)
    start = int(config.decoder_start_token_id)
    written = prefix if prefix[:1] == [start] else [start, *prefix]
    count = min(max_new_tokens, checkpoint.positions + 1 - len(written))
    _append(checkpoint, written, count, source, config.pad_token_id)
    target = prompt_of_ids(checkpoint, written[1:])
    if all(target.special):
        raise TextError("the model writes nothing after this text; give a target: --target (target=).")
    return target


def continued(checkpoint: Checkpoint, prompt: Prompt, count: int | None) -> Prompt:
    """A text with the ``count`` most likely next tokens after it, or fewer if the model ends it; None: as it is.

    TextError: the model has too few positions, or ends at once; the text is a chat that has its answer.
    """
    if count is None:
        return prompt
    chat, first = prompt.source.chat, len(prompt)
    if isinstance(chat, RenderedChat) and chat.answered:
        raise TextError(
            "the chat ends with the assistant's answer, after which nothing is to be written; leave out --generate "
            "(generate=...), or that message."
        )
    if first + count > checkpoint.positions:
        raise TextError(
            f"the text has {counted(first, 'token')} and {count} more were asked for, but the model has "
            f"{checkpoint.positions} positions; shorten the text, or generate fewer."
        )
    written = list(prompt.ids)
    hit_eos = _append(checkpoint, written, count)
    ids = tuple(written[: len(written) - hit_eos])
    if len(ids) == first:
        raise TextError("the model ends this text at once and writes nothing after it; give another, without its end.")
    read = prompt_of_ids(checkpoint, ids)
    whole, new = read.source.text, read.source.text[read.offsets[first][0] :]
    with_new = replace(prompt.source, text=prompt.source.text + new)
    again = encode(checkpoint, [with_new], lambda *_: None, truncate=True, labelled=True)
    if again and again[0].ids == ids:  # as nearly always: the tokenizer's own words and labels
        read, whole = again[0], with_new.text
    continuation = Continuation(
        text=new, whole=whole, first=first, count=len(ids) - first, requested=int(count), hit_eos=hit_eos
    )
    return replace(read, source=prompt.source, messages=prompt.messages, written=continuation)


def drafted_greedily(checkpoint: Checkpoint, ids: Sequence[int], draft: Sequence[int]) -> list[int]:
    """As many most likely next tokens as ``draft`` has, or up to the end token: one pass where the draft is right."""
    head: Any = checkpoint.language_head
    ends, written = _end_tokens(checkpoint), list[int]()
    while len(written) < len(draft):
        tried = draft[len(written) :]
        inputs = torch.tensor([[*ids, *written, *tried[:-1]]], device=checkpoint.device)
        with running_plainly(checkpoint), torch.inference_mode():
            states = checkpoint.model(input_ids=inputs, attention_mask=torch.ones_like(inputs), use_cache=False)[0]
            chosen = head(states[0, -len(tried) :]).argmax(-1).tolist()
        for token, drafted in zip(chosen, tried, strict=True):
            written.append(token)
            if token in ends:
                return written
            if token != drafted:
                break
    return written


def _append(
    checkpoint: Checkpoint, written: list[int], count: int, source: Prompt | None = None, never: int | None = None
) -> bool:
    """Append up to ``count`` most likely next tokens, other than ``never``; return whether one was the end token.

    ``source``: what the encoder of an encoder-decoder reads.
    """
    model: Any = checkpoint.model
    head: Any = checkpoint.language_head
    ends = _end_tokens(checkpoint)
    with running_plainly(checkpoint), torch.inference_mode(), torch.autocast(checkpoint.device.type, enabled=False):
        if source is not None:
            inputs = source.model_inputs(checkpoint.device)
            states = model.encoder(**inputs, return_dict=True).last_hidden_state
            mask = {"encoder_attention_mask": inputs["attention_mask"]} if "attention_mask" in inputs else {}
            model = partial(model.decoder, encoder_hidden_states=states, **mask)
        for _ in range(count):
            ids = torch.tensor([written], device=checkpoint.device)
            given = {"attention_mask": torch.ones_like(ids)} if source is None else {}
            states = model(input_ids=ids, use_cache=False, return_dict=True, **given).last_hidden_state
            logits = head(states[0, -1]).flatten()
            if never is not None and never not in ends and 0 <= never < len(logits):
                logits[never] = -torch.inf
            written.append(int(logits.argmax()))
            if written[-1] in ends:
                return True
    return False


def _end_tokens(checkpoint: Checkpoint) -> set[int]:
    end = checkpoint.config.eos_token_id
    return {end} if isinstance(end, int) else set(end or ())
