"""Verify every attention head of a model on one text, and measure what it does."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis, Options
from attnviz.arguments import as_list
from attnviz.commands.heads.relations import words_of
from attnviz.errors import UsageError
from attnviz.inputs.chats import Message
from attnviz.inputs.prompt import Prompt, TargetTokens, Text, find_queries, merge_subwords, read_prompt, told_apart
from attnviz.inputs.reading import chat_of, in_memory, parse_texts, read_texts
from attnviz.inputs.refusals import OF_TOKENIZER, OTHER_KIND, SEVERAL_TEXTS, refuse
from attnviz.inputs.sound import Sound
from attnviz.inputs.spans import spans_by_name, spans_of
from attnviz.inputs.tokenized import documents_of
from attnviz.judge.verdicts import FEW_ROWS, TOO_SHORT, judge, label_of
from attnviz.language.parsers import parser_for
from attnviz.language.syntax import Parse
from attnviz.measures.contacts import ContactMap
from attnviz.measures.decisions import Decision, class_number, deciding
from attnviz.measures.measure import Measure, copy_to_host, following
from attnviz.measures.patterns import HOST, MaskInput
from attnviz.measures.relations import RelationTally
from attnviz.measures.sinks import SinkTally, with_found_sinks
from attnviz.measures.spans import SpanLayout, SpanTally, measured_spans
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, is_of_source
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.sources import Source
from attnviz.options import ModelOptions, checked
from attnviz.profiles.store import StoredProfile, find_profile, model_shape
from attnviz.progress import Progress, tell
from attnviz.run.corpus import measure_each
from attnviz.run.generate import continued, target_tokens, with_language
from attnviz.run.record import block_memory
from attnviz.run.verify import VerifiedAttention, verify_attention

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
    asked = {**locals(), "spans": spans_by_name(spans), "no_syntax": not syntax}
    given = [each for each in (text, chat, audio) if each is not None]
    if len(given) != 1:
        found = "both" if given else "neither"
        raise UsageError(f"expected a text, or instead a chat or a sound (chat=..., audio=...), found {found}.")
    several = isinstance(text, Iterable) and not isinstance(text, str | bytes)
    texts = [text] if isinstance(text, Mapping) else as_list(text) if several else []
    inputs = [item for item in texts if isinstance(item, Mapping)]
    reads = SEVERAL_TEXTS if several else "" if text is None or isinstance(text, str) else OTHER_KIND
    refuse(asked, None, OF_TOKENIZER if inputs else reads)
    read: Any = text if pair is None else Text(str(text), pair=pair)
    if chat is not None:
        read = chat_of(chat)
    elif audio is not None:
        read = Sound(Path(audio))
    chunk_memory = block_memory(memory)
    checkpoint, source = open_checkpoint(model, several_devices=True, sound=audio is not None, **opening)
    refuse(asked, checkpoint)
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
        spans=asked["spans"],
    )
    if not several:
        return reader.read(read_prompt(read, checkpoint, truncate), target, progress)
    if inputs and model is None and opening.get("adapter") is None:
        raise UsageError("expected model= with what a tokenizer returned: the model of this tokenizer; found none.")
    if len(inputs) < len(texts):
        return list(reader.read_each(list(read_texts(in_memory(texts))), progress))
    documents = [document for item in inputs for document in documents_of(checkpoint, item)]
    if len(documents) > 1:
        refuse(asked, None, SEVERAL_TEXTS)
    analyses = []
    for number, document in enumerate(documents):
        tell(progress, "texts", number, len(documents))
        analyses.append(reader.read(read_prompt(document, checkpoint), target))
    tell(progress, "texts", len(documents), len(documents))
    return analyses[0] if text is inputs[0] and len(analyses) == 1 else analyses


class TextMeasures:
    """What is measured of one text: statistics, and if there are any relations and spans.

    ``contexts`` are those of layers that differ from ``context``.
    """

    def __init__(
        self,
        context: TextContext,
        contexts: dict[int, TextContext],
        relations: RelationTally | None = None,
        spans: SpanTally | None = None,
    ) -> None:
        self.context, self.contexts = context, contexts
        self.statistics, self.relations, self.spans = HeadStatistics(self.context_of), relations, spans

    def context_of(self, layer: int) -> TextContext:
        """What the statistics of a layer share."""
        return self.contexts.get(layer, self.context)

    @property
    def every(self) -> list[Measure]:
        return [measure for measure in (self.statistics, self.relations, self.spans) if measure is not None]


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

        def check(text: Text) -> Prompt:
            self._class_of(text)
            return read_prompt(replace(text, pair=None) if targets else text, self.checkpoint, self.truncate)

        def measure(text: Text, prompt: Prompt) -> Analysis:
            return self.read(prompt, text.pair if targets else None)

        return measure_each(texts, check, measure, progress)

    def _class_of(self, text: Text) -> int | None:
        """The class that is a text's label; None without one, and for models that are no classifiers."""
        classifier = self.checkpoint.classifier
        if text.label is None or classifier is None or classifier.why_no_classes:
            return None
        return class_number(classifier, text)

    def read(self, prompt: Prompt, target: str | None = None, progress: Progress | None = None) -> Analysis:
        """The analysis of what the model reads, and of its decoder's ``target``; errors as for :func:`analyze`."""
        checkpoint = with_language(self.checkpoint, prompt)
        prompt = continued(checkpoint, prompt, self.generate)
        read = target_tokens(checkpoint, prompt, target, self.truncate, self.max_new_tokens)
        parse, note = self._parsed(prompt)
        if self.options.queries is not None:  # sinks are found in rows that are not measured
            prompt = with_found_sinks(checkpoint, prompt)
        sinks, measured = SinkTally(checkpoint, prompt), self._measures(prompt, read, parse)
        rows = measured.context.measured_tokens
        on_rows = following([*measured.every, sinks] if rows is None else measured.every)
        decoded = None if read is None else read.tokens
        with deciding(checkpoint, prompt, self._class_of(prompt.source)) as decided:
            verified = verify_attention(
                checkpoint, prompt, on_rows, progress, decoded, self.memory, rows, keep_outputs=False
            )
        found = sinks.tokens()
        if found.sink != prompt.sink:  # fewer tokens count as content
            verified, measured = replace(verified, tokens=found), self._measures(found, read, parse)
            update = following(measured.every)
            for layer in checkpoint.layers:
                for chunk in verified.rows(layer):
                    update(chunk)
        return self._judged(verified, measured, parse, note, read, next(iter(decided), None))

    def _measures(self, prompt: Prompt, read: TargetTokens | None, parse: Parse | None) -> TextMeasures:
        """What is measured of the rows of a text, by kind of attention and window; relations where it was parsed."""
        checkpoint, causal = self.checkpoint, self.checkpoint.architecture.causal
        context = replace(
            text_context(prompt, causal, self.options),
            learned_sinks=checkpoint.architecture.learned_sinks,
            device=HOST if checkpoint.device.type == "mps" else checkpoint.device,  # it has no float64
        )
        of_kinds = {"L": context, "E": context}
        if read is not None:
            of_kinds["D"] = text_context(read.tokens, True, self.options)
            of_kinds["X"] = across(of_kinds["D"], context)
        contexts = {layer: of_kinds[kind.letter] for kind in checkpoint.kinds for layer in kind.layers}
        windows = [window for window in checkpoint.windows if window is not None and window < len(prompt)]
        narrower = {window: replace(context, window=window) for window in windows}
        contexts |= {layer: narrower[window] for layer, window in enumerate(checkpoint.windows) if window in narrower}
        relations = spans = None
        if parse is not None:
            relations = RelationTally(checkpoint)
            relations.begin_words(words_of(parse, prompt.sinks))
        if not checkpoint.stacks:
            named, first_new = spans_of(prompt, self.spans, context.units), prompt.first_new if causal else None
            spans = SpanTally(SpanLayout(tuple(named), len(prompt), first_new, prompt.sinks)) if named else None
        return TextMeasures(context, contexts, relations, spans)

    def _judged(
        self,
        verified: VerifiedAttention,
        measured: TextMeasures,
        parse: Parse | None,
        note: str,
        read: TargetTokens | None,
        decision: Decision | None,
    ) -> Analysis:
        prompt, contacts, spans = verified.tokens, measured.context.contacts, measured.spans
        findings = tuple(judged(measured, self.stored))
        analysis = Analysis(
            checkpoint=verified.checkpoint,
            tokens=prompt,
            context=measured.context,
            verified=verified,
            heads=findings,
            parse=parse,
            syntax_note=note,
            options=self.options,
            profile=self.stored,
            contexts=measured.contexts,
            target=read,
            decision=decision,
            spans=None if spans is None else measured_spans(spans, prompt, measured.context_of),
        )
        if contacts is None:
            return analysis
        scored = [(head, contacts.statistics(pattern)) for head, pattern in analysis.patterns()]
        return replace(analysis, heads=tuple(replace(head, statistics=head.statistics | of) for head, of in scored))

    def _parsed(self, prompt: Prompt) -> tuple[Parse | None, str]:
        """The parse of what the model reads, or None and why not; UsageError where a parser is named in vain."""
        pipeline = None
        if self.options.queries is not None:
            note = "relations need the rows of all words (leave out --queries, queries=...)."
        elif not self.syntax:
            note = "it was switched off (--no-syntax, syntax=False)."
        elif prompt.why_unparsed:
            note = prompt.why_unparsed
        else:
            pipeline, note = parser_for(prompt.texts, self.parser)
        if self.parser is not None and pipeline is None:
            raise UsageError(f"the parser {self.parser!r} was named, but this text is not parsed: {note}")
        return (None if pipeline is None else parse_texts(pipeline, prompt)), note


def profile_of(
    checkpoint: Checkpoint, source: Source | None, warn: Callable[[str], None] | None
) -> StoredProfile | None:
    """The stored profile of these weights, if any; ``warn`` is called for one that cannot be used."""
    if source is None or checkpoint.stacks:
        return None
    n_layers = len(checkpoint.every_layer)
    shape = model_shape(checkpoint.architecture.name, n_layers, checkpoint.n_heads, checkpoint.d_model)
    return find_profile(source, shape, warn or partial(warnings.warn, stacklevel=6))  # at the caller of analyze()


def text_context(tokens: Prompt, causal: bool, options: Options) -> TextContext:
    """Context of attention within one text: units, and masks of patterns."""
    units = merge_subwords(tokens, options.words)
    tokens_apart = told_apart(tokens.ids, tokens.unknown_id)
    ids = [tuple(tokens_apart[i] for i in unit) for unit in units.members]
    queries = None if options.queries is None else find_queries(units, options.queries)
    contacts = None if options.contacts is None else ContactMap(options.contacts, units.special)
    return TextContext(units, causal, MaskInput(units.labels, ids, causal), queries=queries, contacts=contacts)


def across(target: TextContext, source: TextContext) -> TextContext:
    """Context of attention from a target to its source, without masks: patterns are of positions in one text."""
    return TextContext(target.units, causal=False, text=None, source=source.units)


def judged(measured: TextMeasures, stored: StoredProfile | None = None) -> Iterator[HeadFindings]:
    """The findings of all heads, in the model's order."""
    copy_to_host(measured.every)
    aligned = measured.statistics.aligned
    relations = () if measured.relations is None else measured.relations.results()
    few = TOO_SHORT if measured.context.queries is None else FEW_ROWS
    for layer, statistics in measured.statistics.results().items():
        of_text = measured.context_of(layer)
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
