"""Verify every attention head of a model on one text, and measure what it does."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

from attnviz.arguments import as_found, as_list
from attnviz.commands.heads.analysis import Analysis, Continuation, Options, Target
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.relations import words_of
from attnviz.errors import TextError, UsageError
from attnviz.inputs.chats import Chat, Message, RenderedChat, rendered_chat
from attnviz.inputs.encoding import documents, tokenize, tokens_of_ids
from attnviz.inputs.reading import Text, chat_of, in_memory, read_texts
from attnviz.inputs.sound import Frames, read_sound
from attnviz.inputs.spans import (
    NEW,
    PROMPT,
    REST,
    Span,
    free_name,
    message_spans,
    named_span,
    rest_span,
    segment_spans,
    spans_by_name,
)
from attnviz.inputs.tokens import Positions, Tokens, find_queries, merge_subwords, told_apart
from attnviz.judge.verdicts import FEW_ROWS, TOO_SHORT, judge, label_of
from attnviz.language.parsers import parser_for
from attnviz.language.syntax import Parse, parse_texts
from attnviz.measures.contacts import ContactMap
from attnviz.measures.decisions import class_number, deciding
from attnviz.measures.patterns import HOST, MaskInput
from attnviz.measures.relations import RelationTally
from attnviz.measures.sinks import SinkTally, with_found_sinks
from attnviz.measures.spans import SpanLayout, SpanTally, measured_spans
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.measures.sums import copy_to_host
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, is_of_source
from attnviz.models.opening import Model, open_checkpoint, refuse_target, refuse_words
from attnviz.models.sources import Source
from attnviz.options import ModelOptions, checked
from attnviz.profiles.store import StoredProfile, find_profile, model_shape
from attnviz.progress import Progress, tell
from attnviz.run.corpus import measure_each
from attnviz.run.generate import continue_greedily, target_tokens, with_language
from attnviz.run.record import block_memory
from attnviz.run.verify import VerifiedRows, verify_attention
from attnviz.wording import visible

# What a tokenizer returned: ``input_ids``, and perhaps ``attention_mask``, ``position_ids``, ``token_type_ids``.
Inputs = Mapping[str, Any]


class AnalyzeOptions(ModelOptions, total=False):
    """The keywords of :func:`analyze`, for checkers of types."""

    pair: str | None
    chat: Sequence[Message] | str | Path | None
    audio: str | Path | None
    spans: Mapping[str, str] | Sequence[str]
    contacts: str | Path | None
    words: bool
    syntax: bool
    parser: str | None
    truncate: bool
    target: str | None
    max_new_tokens: int | None
    generate: int | None
    memory: int | str | None
    queries: str | int | None
    progress: Progress | None
    warn: Callable[[str], None] | None


@overload
def analyze(text: str | None = None, model: Model | None = None, **options: Unpack[AnalyzeOptions]) -> Analysis: ...
@overload
def analyze(
    text: list[str] | tuple[str, ...], model: Model | None = None, **options: Unpack[AnalyzeOptions]
) -> list[Analysis]: ...
@overload
def analyze(text: Inputs, model: Model | None = None, **options: Unpack[AnalyzeOptions]) -> Any: ...


@checked
def analyze(
    text: str | Sequence[str] | Inputs | None = None,
    model: Model | None = None,
    *,
    pair: str | None = None,
    chat: Sequence[Message] | str | Path | None = None,
    audio: str | Path | None = None,
    spans: Mapping[str, str] | Sequence[str] = (),
    contacts: str | Path | None = None,
    words: bool = False,
    syntax: bool = True,
    parser: str | None = None,
    truncate: bool = False,
    target: str | None = None,
    max_new_tokens: int | None = None,
    generate: int | None = None,
    memory: int | str | None = None,
    queries: str | int | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **opening: Unpack[ModelOptions],
) -> Analysis | list[Analysis]:
    """Recompute every attention head of a model on a text, verify it, and measure what it does.

    >>> first, second = attnviz.analyze(["The cat ran away", "A dog saw it"])  # doctest: +SKIP
    >>> analysis = attnviz.analyze(tokenizer("The cat ran away"), model)  # doctest: +SKIP

    A stored profile of the weights, the user's or a shipped one, gives roles over a corpus; not for a model in memory,
    whose weights may have changed.

    Args:
        text: one text; a list of texts, each of which is verified by itself; or what a tokenizer returned, a mapping
            with ``input_ids``, [n] or [batch, n], or a list of such mappings. Their ``attention_mask`` says what is
            padding, which is left out. Documents in one row are analysed apart, as ``position_ids`` that begin again
            divide them. None with a chat.
        model: a built-in name (``minilm``), a checkpoint's folder, a hub id, a Source found before, or a model in
            memory: of transformers, or the ``checkpoint`` of an earlier analysis. It runs where and as it is, with the
            implementation of attention that it has, in eval mode for the one pass.
        pair: a second segment (BERT).
        chat: instead of a text, messages ``{"role": ..., "content": ...}``, or a file of them: rendered by the
            tokenizer's own chat template, which waits for an answer unless the last message is one. Each message is a
            span by its role: ``system``, ``user``, ``user#2``.
        audio: instead of a text, for Whisper: a WAV file, or its log-mel features [n_bins, n_columns] (.npy).
        spans: of which attention to one another is measured, beside those of a chat, a pair or a continuation
            (``prompt``, ``new``): by name a stretch of the text, its second occurrence as ``stretch#2``, or positions
            such as ``#10-#40``.
        contacts: a file with the residues of a protein that are in contact
            (:class:`attnviz.measures.contacts.ContactMap`), which scores each head; chains are parted by colons.
        words: merge word pieces: sum over the pieces attended to, mean over those attending.
        syntax: measure syntactic patterns where spaCy and a pipeline are installed.
        parser: the spaCy pipeline to use, whatever the text looks like; default an installed one of its language.
        truncate: cut a text that is longer than the model instead of raising.
        target: of an encoder-decoder, the text that its decoder reads; default one that it generates, greedily.
        max_new_tokens: of that text, at most; default 40.
        generate: of a decoder, how many tokens it writes after the text, greedily, before all of it is analysed in one
            pass; fewer where it ends the text.
        memory: that a chunk of query rows may take, in bytes, or as ``"64M"``; default 48 MiB, on a GPU 1 GiB or a
            quarter of what is free.
        queries: measure the rows of some queries alone, over all keys: ``last``, a stretch such as ``-64:`` or
            ``100:200``, or a token as ``token`` of a figure names it. For long texts: memory and files grow with the
            length, not with its square. Relations are not measured.
        progress: callback for every layer verified.
        warn: callback for a stored profile that cannot be used; default a Python warning.
        opening: see :class:`attnviz.options.ModelOptions`.

    Returns:
        an analysis; of a list of texts, or of inputs with several documents, a list in their order.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do
            not reproduce the model.
    """
    check_parser(parser, syntax)
    given = [each for each in (text, chat, audio) if each is not None]
    if len(given) != 1:
        found = "both" if given else "neither"
        raise UsageError(f"expected a text, or instead a chat or a sound (chat=..., audio=...), found {found}.")
    named = spans_by_name(spans)
    messages = None if chat is None else chat_of(chat)
    chunk_memory = block_memory(memory)
    checkpoint, source = open_checkpoint(model, several_devices=True, sound=audio is not None, **opening)
    frames = None if audio is None else read_sound(Path(audio), checkpoint.config, checkpoint.dtype)
    checkpoint = checkpoint if frames is None else with_language(checkpoint, frames)
    reader = Reader(
        checkpoint,
        stored=profile_of(checkpoint, source, warn),
        options=Options(words, queries, None if contacts is None else str(contacts)),
        syntax=syntax,
        parser=parser,
        truncate=truncate,
        max_new_tokens=max_new_tokens,
        memory=chunk_memory,
        generate=generate,
        spans=named,
    )
    if text is None:
        return reader.read(str(audio or ""), pair, target, progress, frames, messages)
    if isinstance(text, bytes) or not isinstance(text, Iterable):
        raise TextError(f"expected text (or several, in a list) as a string, found {type(text).__name__}.")
    if isinstance(text, str):
        return reader.read(text, pair, target, progress)
    texts = [text] if isinstance(text, Mapping) else as_list(text)
    inputs = [item for item in texts if isinstance(item, Mapping)]
    if inputs and model is None and opening.get("adapter") is None:
        raise UsageError("expected model= with what a tokenizer returned: the model of this tokenizer; found none.")
    of_one = {"pair": pair, "target": None if inputs else target, "generate": generate if inputs else None}
    for name, value in {**of_one, "contacts": contacts}.items():
        if value is not None:
            raise UsageError(f"expected {name} with one text, found it with {as_found(type(text).__name__)}.")
    if len(inputs) < len(texts):
        return list(reader.read_each(list(read_texts(in_memory(texts))), progress))
    of_inputs = [document for item in inputs for document in documents(checkpoint, item)]
    if target is not None and len(of_inputs) > 1:
        raise UsageError(f"expected target with one text, found it with {len(of_inputs)} texts.")
    analyses = []
    for number, (words_read, second, tokens) in enumerate(of_inputs):
        tell(progress, "texts", number, len(of_inputs))
        analyses.append(reader.read(words_read, second, target, None, tokens))
    tell(progress, "texts", len(of_inputs), len(of_inputs))
    return analyses[0] if text is inputs[0] and len(analyses) == 1 else analyses


@dataclass
class _Tallies:
    """What is measured of the verified rows of one text."""

    checkpoint: Checkpoint
    context: TextContext
    contexts: dict[int, TextContext]  # by layer, that differ
    relations: RelationTally
    layout: SpanLayout | None
    statistics: dict[object, HeadStatistics] = field(default_factory=dict)
    spans: dict[int, SpanTally] = field(default_factory=dict)  # by layer

    def update(self, rows: VerifiedRows) -> None:
        """Add the next rows; layers with the same masks on one device are summed together."""
        context, n_heads = self.contexts.get(rows.layer, self.context), self.checkpoint.n_heads_of(rows.layer)
        alike = id(context), n_heads, rows.pattern.device
        if alike not in self.statistics:
            self.statistics[alike] = HeadStatistics(context, n_heads)
        self.statistics[alike].update(rows)
        if self.layout is not None:
            self.spans.setdefault(rows.layer, SpanTally(self.layout)).update(rows)
        if is_of_source(rows.layer):  # the parse is of the source
            self.relations.update(rows)


@dataclass(frozen=True)
class Reader:
    """A loaded model, its stored profile if any, and the options of reading; see :func:`analyze`."""

    checkpoint: Checkpoint
    stored: StoredProfile | None
    options: Options = field(default_factory=Options)
    syntax: bool = True
    parser: str | None = None
    truncate: bool = False
    max_new_tokens: int | None = None
    memory: int | None = None
    generate: int | None = None
    spans: Mapping[str, str] = field(default_factory=dict)

    def read_each(self, texts: Sequence[Text], progress: Progress | None, targets: bool = False) -> Iterator[Analysis]:
        """The analyses of several texts or chats, in order; all are tokenized before the first is measured.

        Errors of a text say which it is. With ``targets`` a decoder reads their pairs.
        """

        def check(text: Text) -> tuple[str, str | None, Tokens | None]:
            self._class_of(text)
            if text.ids:
                return documents(self.checkpoint, {"input_ids": text.ids})[0]
            is_chat = bool(text.messages)
            whole = rendered_chat(self.checkpoint.tokenizer, text.messages).text if is_chat else text.text
            tokenize(self.checkpoint, whole, None if targets else text.pair, self.truncate, rendered=is_chat)
            return text.text, text.pair, None

        def measure(text: Text, read: tuple[str, str | None, Tokens | None]) -> Analysis:
            words, pair, tokens = read
            chat = Chat(text.messages) if text.messages else None
            pair, target = (None, pair) if targets else (pair, None)
            return self.read(words, pair, target, None, tokens, chat, self._class_of(text))

        return measure_each(texts, check, measure, progress)

    def _class_of(self, text: Text) -> int | None:
        """The class that is a text's label; None without one, and for models that are no classifiers."""
        classifier = self.checkpoint.classifier
        if text.label is None or classifier is None or classifier.why_no_classes:
            return None
        return class_number(classifier, text)

    def read(
        self,
        text: str,
        pair: str | None,
        target: str | None,
        progress: Progress | None,
        given: Tokens | None = None,
        chat: Chat | None = None,
        label: int | None = None,
    ) -> Analysis:
        """The analysis of a text, perhaps with ``given`` tokens, or of a chat; errors as for :func:`analyze`.

        ``label``: of a classifier, the right class.
        """
        checkpoint, causal = self.checkpoint, self.checkpoint.architecture.causal
        self._refuse_together(chat, pair, target, isinstance(given, Frames))
        rendered = None if chat is None else rendered_chat(checkpoint.tokenizer, chat.messages)
        text = text if rendered is None else rendered.text
        prompt = given or tokenize(checkpoint, text, pair, self.truncate, rendered=chat is not None)
        continuation, tokens = None, prompt
        if self.generate is not None:
            continuation, tokens = self._continued(text, prompt, rendered)
        units = merge_subwords(tokens, self.options.words)
        of_target = self._target(tokens, units, target) if checkpoint.stacks else None
        texts = tokens.texts_read(text if continuation is None else continuation.whole, pair)
        parse, note = self._parsed(texts, tokens)

        def tallies(tokens: Tokens) -> _Tallies:
            context = replace(
                _context_of(tokens, causal, self.options),
                learned_sinks=checkpoint.architecture.learned_sinks,
                device=HOST if checkpoint.device.type == "mps" else checkpoint.device,  # it has no float64
            )
            relations = RelationTally(checkpoint)
            if parse is not None:
                relations.begin_words(words_of(parse, tokens.sinks))
            spans = None if checkpoint.stacks else self._layout(tokens, context, texts, prompt, rendered, continuation)
            contexts = _contexts(checkpoint, context, of_target, len(tokens))
            return _Tallies(checkpoint, context, contexts, relations, spans)

        queries = None
        if self.options.queries is not None:
            tokens = with_found_sinks(checkpoint, tokens)
            chosen = find_queries(units, self.options.queries)
            queries = tuple(sorted({token for unit in chosen for token in units.members[unit]}))
        sinks, tallied = SinkTally(checkpoint, tokens), tallies(tokens)

        def on_rows(rows: VerifiedRows) -> None:
            tallied.update(rows)
            if queries is None:
                sinks.update(rows)

        decoded = None if of_target is None else of_target.tokens
        with deciding(checkpoint, tokens, label) as decided:
            attention = verify_attention(
                checkpoint, tokens, on_rows, progress, decoded, self.memory, queries, keep_outputs=False
            )
        found = sinks.tokens()
        if found.sink != tokens.sink:  # fewer tokens count as content
            tokens, attention, tallied = found, replace(attention, tokens=found), tallies(found)
            for layer in checkpoint.layers:
                for rows in attention.rows(layer):
                    tallied.update(rows)
        context, contexts, of_spans = tallied.context, tallied.contexts, tallied.spans
        analysis = Analysis(
            text=text,
            pair=pair,
            checkpoint=checkpoint,
            tokens=tokens,
            context=context,
            verified=attention,
            heads=tuple(judged(list(tallied.statistics.values()), tallied.relations, contexts, context, self.stored)),
            parse=parse,
            syntax_note=note,
            options=self.options,
            profile=self.stored,
            contexts=contexts,
            target=of_target,
            continuation=continuation,
            chat=chat,
            decision=next(iter(decided), None),
            spans=measured_spans(of_spans, tokens, lambda layer: contexts.get(layer, context)) if of_spans else None,
        )
        if context.contacts is None:
            return analysis
        scored = [(head, context.contacts.statistics(pattern)) for head, pattern in analysis.patterns()]
        heads = (replace(head, statistics=head.statistics | scores) for head, scores in scored)
        return replace(analysis, heads=tuple(heads))

    def _refuse_together(self, chat: Chat | None, pair: str | None, target: str | None, of_sound: bool) -> None:
        checkpoint, options = self.checkpoint, self.options
        of_one_text = not checkpoint.stacks
        if options.queries is not None and not of_one_text:
            raise UsageError(
                "--queries (queries=...) is of models that read one text, but this is an encoder-decoder; leave it out."
            )
        is_encoder = of_one_text and not checkpoint.architecture.causal
        if options.contacts and (options.queries is not None or not is_encoder):
            raise UsageError(
                "--contacts is of encoders that read one text, such as ESM-2, and of all rows; leave it out, or "
                "--queries."
            )
        refuse_target(checkpoint, target, self.max_new_tokens)
        refuse_words(checkpoint, words=options.words, parser=self.parser)
        if pair is not None and (chat is not None or of_sound):
            raise UsageError(
                "a chat or a sound is the whole text: leave out --pair (pair=...), or --chat or --audio (chat=..., "
                "audio=...)."
            )
        if not of_one_text and (chat is not None or self.spans):
            raise UsageError(
                "chats and spans are of models that read one text, but this is an encoder-decoder; leave out --chat "
                "and --span (chat=..., spans=...)."
            )
        if self.generate is not None and pair is not None:
            raise TextError("a continuation is of one text; leave out --pair (pair=...) or --generate (generate=...).")
        is_decoder = of_one_text and checkpoint.architecture.causal and checkpoint.language_head is not None
        if self.generate is not None and not is_decoder:
            raise TextError(
                "a continuation takes a decoder with a language-modelling head that attnviz knows, such as GPT-2 or a "
                f"Llama, found {checkpoint.architecture.name}; leave out --generate (generate=...)."
            )

    def _continued(self, text: str, tokens: Tokens, rendered: RenderedChat | None) -> tuple[Continuation, Tokens]:
        if rendered is not None and rendered.answered:
            raise TextError(
                "the chat ends with the assistant's answer, after which nothing is to be written; leave out --generate "
                "(generate=...), or that message."
            )
        checkpoint, requested = self.checkpoint, int(self.generate or 0)  # it may be NumPy's
        new, hit_eos = continue_greedily(checkpoint, tokens, requested)
        first, ids = len(tokens), (*tokens.ids, *new)
        whole, read = tokens_of_ids(checkpoint.tokenizer, ids, True)
        written = whole[read.offsets[first][0] :]
        again = tokenize(checkpoint, text + written, truncate=True, rendered=rendered is not None)
        if again.ids == ids:  # as nearly always: the tokenizer's own words and labels
            whole, read = text + written, again
        continuation = Continuation(
            text=written, whole=whole, first=first, count=len(new), requested=requested, hit_eos=hit_eos
        )
        return continuation, read

    def _target(self, tokens: Tokens, source: Positions, target: str | None) -> Target:
        read = target_tokens(self.checkpoint, tokens, target, self.truncate, self.max_new_tokens)
        context = _context_of(read.tokens, True, self.options)
        return Target(
            text=read.text,
            tokens=read.tokens,
            generated=read.generated,
            context=context,
            cross=TextContext(context.units, False, None, source),  # patterns are of positions in one text
            max_new_tokens=self.max_new_tokens,
        )

    def _parsed(self, texts: Sequence[str], tokens: Tokens) -> tuple[Parse | None, str]:
        """The parse of what the model reads, or None and why not; UsageError where a parser is named in vain."""
        checkpoint, pipeline = self.checkpoint, None
        if self.options.queries is not None:
            note = "relations need the rows of all words (leave out --queries, queries=...)."
        elif not self.syntax:
            note = "it was switched off (--no-syntax, syntax=False)."
        elif isinstance(tokens, Frames):
            note = "a sound has none."
        elif not checkpoint.architecture.has_words:
            note = "texts of this model have no words."
        elif not getattr(checkpoint.tokenizer, "is_fast", True):
            note = "this tokenizer does not tell which characters its tokens stand for."
        else:
            pipeline, note = parser_for(texts, self.parser)
        if self.parser is not None and pipeline is None:
            raise UsageError(f"the parser {self.parser!r} was named, but this text is not parsed: {note}")
        return (None if pipeline is None else parse_texts(pipeline, texts, tokens)), note

    def _layout(
        self,
        tokens: Tokens,
        context: TextContext,
        texts: Sequence[str],
        prompt: Tokens,
        rendered: RenderedChat | None,
        continuation: Continuation | None,
    ) -> SpanLayout | None:
        messages = [] if rendered is None else message_spans(prompt, rendered.messages)
        spans, first_new = [*messages, *segment_spans(tokens)], None
        is_whole = rendered is not None and rendered.answered and len(messages) == len(rendered.messages)
        if is_whole and context.causal:  # the answer that ends the chat
            first_new = messages[-1].tokens[0]
        if continuation is not None:
            first_new = continuation.first
            for name, members in ((PROMPT, range(first_new)), (NEW, range(first_new, len(tokens)))):
                spans.append(Span(free_name(name, [span.name for span in spans]), tuple(members)))
        if taken := [span.name for span in spans if span.name in self.spans]:
            raise UsageError(f"--span {visible(taken[0])}: this text has a span of that name by itself; take another.")
        for name, what in self.spans.items():
            if what != REST:
                spans.append(named_span(name, what, texts, tokens, context.units))
        others = [rest_span(name, spans, len(tokens), what) for name, what in self.spans.items() if what == REST]
        if len(spans) == 1 and not others:  # it is measured against the rest of the text
            others = [rest_span(free_name(REST, [spans[0].name]), spans, len(tokens))]
            others = others if others[0].tokens or spans[0].given else []
        if empty := [span.name for span in others if not span.tokens]:
            raise UsageError(f"--span {visible(empty[0])}: the other spans are the whole text, and leave no rest.")
        spans += others
        return SpanLayout(tuple(spans), len(tokens), first_new, tokens.sinks) if spans else None


def check_parser(parser: str | None, syntax: bool) -> None:
    """Raise UsageError where a parser is named and nothing is to be parsed."""
    if parser is not None and not syntax:
        raise UsageError(f"the parser {parser!r} was named, but syntax was switched off; give one or the other.")


def profile_of(
    checkpoint: Checkpoint, source: Source | None, warn: Callable[[str], None] | None
) -> StoredProfile | None:
    """The stored profile of these weights, if any; ``warn`` is called for one that cannot be used."""
    if source is None or checkpoint.stacks:
        return None
    n_layers = len(checkpoint.every_layer)
    shape = model_shape(checkpoint.architecture.name, n_layers, checkpoint.n_heads, checkpoint.d_model)
    return find_profile(source, shape, warn or partial(warnings.warn, stacklevel=7))  # at the caller of analyze()


def _context_of(tokens: Tokens, causal: bool, options: Options) -> TextContext:
    """Context of attention within one text: units, and masks of patterns."""
    units = merge_subwords(tokens, options.words)
    tokens_apart = told_apart(tokens.ids, tokens.unknown_id)
    ids = [tuple(tokens_apart[i] for i in unit) for unit in units.members]
    queries = None if options.queries is None else find_queries(units, options.queries)
    contacts = None if options.contacts is None else ContactMap(options.contacts, units.special)
    return TextContext(units, causal, MaskInput(units.labels, ids, causal), queries=queries, contacts=contacts)


def _contexts(checkpoint: Checkpoint, context: TextContext, target: Target | None, n: int) -> dict[int, TextContext]:
    """Contexts by layer that differ from that of the text: of a target, or with a window below n tokens."""
    if target is not None:
        of_stack = {"D": target.context, "X": target.cross}
        return {layer: of_stack.get(stack.letter, context) for stack in checkpoint.stacks for layer in stack.layers}
    shorter = {layer: window for layer, window in enumerate(checkpoint.windows) if window is not None and window < n}
    windows = {window: replace(context, window=window) for window in set(shorter.values())}
    return {layer: windows[window] for layer, window in shorter.items()}


def judged(
    measured: Sequence[HeadStatistics],
    relation_tally: RelationTally | None,
    contexts: Mapping[int, TextContext],
    context: TextContext,
    stored: StoredProfile | None,
) -> Iterator[HeadFindings]:
    """The findings of all heads, in the model's order."""
    copy_to_host([*measured, *([] if relation_tally is None else [relation_tally])])
    by_layer = {layer: statistics for tally in measured for layer, statistics in tally.results().items()}
    aligned = {layer: of_heads for tally in measured for layer, of_heads in tally.aligned.items()}
    relations = () if relation_tally is None else relation_tally.results()
    few = TOO_SHORT if context.queries is None else FEW_ROWS
    for layer in sorted(by_layer):
        statistics, of_text = by_layer[layer], contexts.get(layer, context)
        for head in range(len(statistics["entropy"])):
            id = HeadId(layer, head)
            of_head = {name: values[head] for name, values in statistics.items()}
            verdicts = judge(of_head, of_text, relations if is_of_source(layer) else (), id)
            yield HeadFindings(
                id,
                statistics=of_head,
                verdicts=tuple(verdicts),
                labelled=label_of(verdicts, of_text.n_non_sink, few),
                roles=None if stored is None else stored.of(id),
                alignment=tuple(aligned[layer][head]) if layer in aligned else (),
            )
