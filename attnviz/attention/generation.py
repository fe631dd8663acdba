"""Greedy generation, one forward pass a token, for texts of a few dozen tokens."""

from typing import Any, NamedTuple

import torch

from attnviz.arguments import check_whole
from attnviz.attention.capture import eager_and_eval
from attnviz.errors import TextError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.encoding import tokens_of_ids
from attnviz.model.tokens import Tokens, shifted_right
from attnviz.model.wording import counted, visible

MOST_NEW_TOKENS = 40
"""The longest target that is generated, unless another length is asked for."""


class TargetTokens(NamedTuple):
    """A target, given or ``generated`` by the model, and the decoder's input: a start token and all but its last."""

    text: str
    tokens: Tokens
    generated: bool


def target_tokens(
    checkpoint: Checkpoint, source: Tokens, given: str | None, truncate: bool, max_new_tokens: int | None
) -> TargetTokens:
    """What the decoder of an encoder-decoder reads: the target that was given, or one that it writes, greedily.

    Raises:
        TextError: see :func:`attnviz.model.encoding.tokenize`.
        UsageError: ``max_new_tokens`` is no whole number from 1 on.
    """
    longest = MOST_NEW_TOKENS if max_new_tokens is None else max_new_tokens
    check_whole("max_new_tokens", longest, 1)
    if given is None:
        text, whole = generate_greedily(checkpoint, source, longest)
    else:
        text, whole = given, checkpoint.tokenize(given, None, truncate, target=True)
    start = int(checkpoint.config.decoder_start_token_id)
    label = visible(str(checkpoint.tokenizer.convert_ids_to_tokens(start) or f"id {start}"))
    return TargetTokens(text, shifted_right(whole, start, label), given is None)


def generate_greedily(checkpoint: Checkpoint, tokens: Tokens, max_new_tokens: int) -> tuple[str, Tokens]:
    """The target that the model writes itself, as text and tokens: always the most likely next one, never padding.

    It ends with the model's end token, or after so many tokens, or where its positions end.

    Raises:
        TextError: the model has no language-modelling head, or writes nothing.
    """
    head = checkpoint.language_head
    if head is None:
        raise TextError(
            "this checkpoint has no language-modelling head, so it cannot write a target; give one: --target (target=)."
        )
    model: Any = checkpoint.model
    config, given, ends = checkpoint.config, tokens.model_inputs(checkpoint.device), _end_tokens(checkpoint)
    written = [int(config.decoder_start_token_id)]
    with eager_and_eval(model), torch.inference_mode(), torch.autocast(checkpoint.device.type, enabled=False):
        source = model.encoder(**given).last_hidden_state
        for _ in range(min(max_new_tokens, checkpoint.positions)):
            hidden = model.decoder(
                input_ids=torch.tensor([written], device=checkpoint.device),
                encoder_hidden_states=source,
                encoder_attention_mask=given["attention_mask"],
                use_cache=False,
            ).last_hidden_state
            logits = head(hidden[0, -1]).flatten()
            if config.pad_token_id is not None and config.pad_token_id not in ends:
                logits[config.pad_token_id] = -torch.inf
            written.append(int(logits.argmax()))
            if written[-1] in ends:
                break
    text, target = tokens_of_ids(checkpoint.tokenizer, written[1:])
    if all(target.special):
        raise TextError("the model writes nothing after this text; give a target: --target (target=).")
    return text, target


def continue_greedily(checkpoint: Checkpoint, tokens: Tokens, count: int) -> tuple[list[int], bool]:
    """What a decoder writes after a text, always the most likely next token: so many tokens, or fewer.

    Args:
        checkpoint: a decoder with its language-modelling head.
        tokens: the text.
        count: of tokens to write.

    Returns:
        their ids, without the end token; and whether the model ended the text itself.

    Raises:
        TextError: the model has too few positions, or ends at once.
    """
    head: Any = checkpoint.language_head
    if len(tokens) + count > checkpoint.positions:
        raise TextError(
            f"the text has {counted(len(tokens), 'token')} and {count} more were asked for, but the model has "
            f"{checkpoint.positions} positions; shorten the text, or generate fewer."
        )
    written, ends, model = list(tokens.ids), _end_tokens(checkpoint), checkpoint.model
    with eager_and_eval(model), torch.inference_mode(), torch.autocast(checkpoint.device.type, enabled=False):
        for _ in range(count):
            ids = torch.tensor([written], device=checkpoint.device)
            hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
            following = int(head(hidden[0, -1]).flatten().argmax())
            if following in ends:
                break
            written.append(following)
    new = written[len(tokens) :]
    if not new:
        raise TextError("the model ends this text at once and writes nothing after it; give another, without its end.")
    return new, len(new) < count


def _end_tokens(checkpoint: Checkpoint) -> set[int]:
    given = checkpoint.config.eos_token_id
    return {given} if isinstance(given, int) else set(given or ())
