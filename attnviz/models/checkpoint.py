"""Loads a checkpoint from its folder, or wraps a model in memory."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import CheckpointError, VerificationError
from attnviz.models.adapters import merge_adapter, merged_copy, saved_head
from attnviz.models.classifier import NEXT, SPAN, TASKS, TEXT, Classifier, classification_class, classifier_of, task_of
from attnviz.models.configs import check_sizes, of_first_layer
from attnviz.models.families import architecture_of
from attnviz.models.families.base import Architecture, Embeddings, LayerModules, first_position, norm_of
from attnviz.models.families.fit import check_fit
from attnviz.models.head_ids import LayerId, NumberedLayer, Stack, is_of_source, layer_of, number_of
from attnviz.models.libraries import calling_transformers
from attnviz.models.offloading import running_device, weight_devices_of
from attnviz.models.quantised import formats_of
from attnviz.models.reproduced import config_in
from attnviz.models.sources import FULL_NAMES, Source, weight_files
from attnviz.models.tokenizers import load_tokenizer, without_sampling
from attnviz.models.weights import (
    check_loaded,
    check_parts,
    check_report,
    check_weights,
    each_weight,
    hash_of_files,
    own_dtype,
    read_weights,
    refuse_beyond_memory,
    refuse_rounded,
)
from attnviz.reference.attention import HeadParameters, Norm
from attnviz.reference.tolerances import Tolerance, tolerance_of
from attnviz.wording import counted, visible


@dataclass(frozen=True)
class Checkpoint:
    """A model whose attention can be recomputed, with its tokenizer."""

    name: str  # as the user gave it; with an adapter, both names
    revision: str | None  # the hub's commit or the package's version
    architecture: Architecture
    model: nn.Module  # the bare transformers model (no task head)
    tokenizer: Any
    language_head: nn.Module | None = None  # to logits [.., vocabulary] from the last hidden state
    # of the weights' files, of a model in memory of its parameters; None where weights were given as patterns
    weights_hash: Callable[[], str] | None = None
    class_head: Classifier | None = None  # for classes of texts or tokens; a checkpoint has one head at most
    encoder_only: bool = False  # of an encoder-decoder, whether its encoder alone is run and measured
    weight_devices: tuple[str, ...] = ()  # of a model with a device map, ``cpu`` and ``disk`` among them
    adapter: Source | None = None  # what was merged into the weights
    image_token: int | None = None  # in place of which the whole model reads an image
    whole: nn.Module | None = None  # the model with its head
    notes: tuple[str, ...] = ()  # sentences on what is not as it was given, such as a tokenizer's dropout
    # formats of quantised weights, see :func:`attnviz.models.quantised.formats_of`
    quantised: Mapping[str, torch.dtype] = field(default_factory=dict)
    looked_up: Sequence[LayerModules] = ()  # the :attr:`modules`, for one pass

    def __repr__(self) -> str:
        heads = sum(map(self.n_heads_of, self.layers))
        return f"<Checkpoint {self.short_name}: {self.architecture.name}, {counted(heads, 'head')}, {self.runs_as}>"

    @property
    def weights_sha256(self) -> str | None:
        """The SHA-256 of the weights, computed when it is first asked for."""
        return None if self.weights_hash is None else self.weights_hash()

    @property
    def encoder(self) -> "Checkpoint":
        """The encoder alone of an encoder-decoder; any other model unchanged."""
        return replace(self, encoder_only=True) if self.stacks else self

    @property
    def running(self) -> Any:
        """The module whose forward pass is measured."""
        return self.model.encoder if self.encoder_only else self.model

    @property
    def modules(self) -> list[LayerModules]:
        """The modules of each of the :attr:`layers`, and of :attr:`other_layers`."""
        if self.looked_up:
            return list(self.looked_up)
        modules = self.architecture.modules(self.model)
        return modules[: self.n_layers] if self.encoder_only else modules

    def parameters(self, layer: int) -> HeadParameters:
        """The parameters of a layer's heads, read from the model as it is now."""
        return self.architecture.parameters(self.model, layer)

    @property
    def embeddings(self) -> Embeddings:
        return self.architecture.embeddings(self.model)

    @property
    def final_norm(self) -> nn.Module | None:
        return self.architecture.final_norm(self.model)

    @property
    def output_map(self) -> nn.Module | None:
        """The linear map from what the final norm gives to final states (OPT-350m); None without one."""
        return self.architecture.output_map(self.model)

    @property
    def residual_multiplier(self) -> float:
        return self.architecture.residual_multiplier(self.config)

    @property
    def classifier(self) -> Classifier | None:
        """The head for classes of a text; None without one."""
        return self.class_head if self.class_head and self.class_head.task in (TEXT, NEXT) else None

    @property
    def answers_questions(self) -> bool:
        """Whether its head gives start and end of an answer."""
        return self.class_head is not None and self.class_head.task == SPAN

    @property
    def head_in_words(self) -> str:
        """What its head is for: ``token classification``."""
        if self.class_head is not None:
            return TASKS[self.class_head.task]
        return "none" if self.language_head is None else "language modelling"

    @property
    def prediction_head(self) -> nn.Module | None:
        """The head that makes class or token logits of final states; None without one."""
        return self.language_head if self.class_head is None else self.class_head.head

    @property
    def why_no_classes(self) -> str:
        """Reason why the model predicts no classes, or ''."""
        if self.stacks:
            return "classes of an encoder-decoder are not measured"
        if self.classifier is not None:
            return self.classifier.why_no_classes
        return f"this one has none; expected a checkpoint that was saved as {classification_class(self.architecture)}"

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def short_name(self) -> str:
        """The name for titles, safe to show: the last part of a folder; with ``(encoder)`` for an encoder alone."""
        return short_name(self.names, self.encoder_only)

    @property
    def full_name(self) -> str:
        """The short name, of a built-in model as its makers call it: ``all-MiniLM-L6-v2``."""
        first = self.names[0]
        return FULL_NAMES[first] + self.short_name.removeprefix(first) if first in FULL_NAMES else self.short_name

    @property
    def names(self) -> list[str]:
        added = "" if self.adapter is None else self.adapter.name
        return [self.name.removesuffix(f" + {added}"), added] if added else [self.name]

    @property
    def model_options(self) -> list[str]:
        return [word for pair in zip(("--model", "--adapter"), self.names, strict=False) for word in pair]

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of an encoder-decoder (encoder, decoder, cross-attention); empty for other models."""
        return self.architecture.stacks(self.config)[: 1 if self.encoder_only else None]

    @property
    def kinds(self) -> Sequence[Stack]:
        """The stacks of an encoder-decoder; of other models one of all layers that attend."""
        return self.stacks or self.architecture.kinds(self.config)

    @property
    def layers(self) -> Sequence[int]:
        """The attention layers by number; in an encoder-decoder :class:`LayerId` numbers through all stacks.

        Where some layers do not attend, :class:`NumberedLayer` of those that do.
        """
        return [layer for kind in self.kinds for layer in kind.layers]

    @property
    def other_layers(self) -> Sequence[int]:
        """The layers that do not attend, counted after those that do."""
        numbers = self.architecture.not_attending(self.config)
        return [NumberedLayer(self.n_layers + index, number) for index, number in enumerate(numbers)]

    @property
    def every_layer(self) -> Sequence[int]:
        """All layers as they run, also those that do not attend; of a decoder self- and cross-attention by turns."""
        return sorted((*self.layers, *self.other_layers), key=lambda layer: (not is_of_source(layer), number_of(layer)))

    @property
    def n_layers(self) -> int:
        """Attention layers; in an encoder-decoder those of all stacks."""
        return sum(kind.n_layers for kind in self.kinds)

    def layer_of(self, layer: object) -> int:
        """The attention layer with this number; one of :attr:`layers` is itself. UsageError if there is none."""
        return layer_of(layer, self.kinds, self.name)

    @property
    def n_heads(self) -> int:
        return int(self.config.num_attention_heads)

    def n_heads_of(self, layer: int) -> int:
        """Heads in one layer; encoder and decoder may differ."""
        layer_id = self.layers[layer]
        return layer_id.stack.n_heads if isinstance(layer_id, LayerId) else self.n_heads

    def head_counts(self, layer: int) -> tuple[int, int]:
        """Heads, and KV heads, in one layer."""
        return self.architecture.head_counts(self.config, layer)

    @property
    def d_model(self) -> int:
        return int(self.config.hidden_size)

    @property
    def d_head(self) -> int:
        """Width of a head's queries and keys in the first layer; not every family reads ``head_dim``."""
        setting = self.architecture.d_head_setting
        stated = getattr(of_first_layer(self.config), setting, None) if self.architecture.states_d_head else None
        return int(stated or self.d_model // self.n_heads)

    @property
    def positions(self) -> int:
        """Most tokens of a text; without the reserved first rows of RoBERTa's position table."""
        return self.architecture.longest(self.config)[0] - first_position(self.architecture, self.config)

    @property
    def limit(self) -> str:
        """What a message says after these positions: why no more are reproduced, or ''."""
        why = self.architecture.longest(self.config)[1]
        return why and f" that are reproduced ({why})"

    @property
    def device(self) -> torch.device:
        """Device of the model; with a device map, of its input embeddings."""
        model: Any = self.model
        return running_device(model.get_input_embeddings() if self.weight_devices else model)

    @property
    def device_names(self) -> str:
        """Devices of the weights, ``cuda:0, cpu, disk`` with a device map."""
        return ", ".join(self.weight_devices) or str(self.device)

    @property
    def attention(self) -> str:
        """The implementation of attention that the model runs with: ``sdpa``, ``eager``, … (transformers' names).

        VerificationError: its layers have different ones.
        """
        if self.architecture.bypassing:
            return "eager"
        model: Any = self.model
        configs = [getattr(layer.attention, "config", model.config) for layer in self.modules]
        names = {str(getattr(config, "_attn_implementation", None) or "eager") for config in configs}
        if len(names) > 1:
            raise VerificationError(
                f"the layers of this model attend in different ways ({', '.join(sorted(names))}); expected one: "
                "model.set_attn_implementation(NAME)."
            )
        return names.pop()

    @property
    def compiled(self) -> bool:
        """Whether the model, or a part of it, is compiled by torch; it then runs uncompiled."""
        whole: nn.Module = self.model if self.whole is None else self.whole
        return any(
            module._compiled_call_impl
            or "_orig_mod" in module._modules
            or hasattr(module.forward, "_torchdynamo_orig_callable")  # of torch.compile(module.forward)
            for module in whole.modules()
        )

    @property
    def dtype(self) -> torch.dtype:
        return next(weight.dtype for weight in self.model.parameters() if weight.is_floating_point())

    @property
    def runs_as(self) -> str:
        """Number format, devices and quantised weights in words: ``float32, cpu``."""
        return ", ".join([str(self.dtype).removeprefix("torch."), self.device_names, *self.quantised])

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Attention window of each layer, in tokens including the query; None for no window."""
        return tuple(self.architecture.window(self.config, layer) for layer in range(self.n_layers))

    @property
    def tolerance(self) -> Tolerance:
        """Tolerance of a recomputation of this model, in the coarsest format that it computes in.

        What multiplies quantised weights may round queries and keys in other places than the reference does, which
        moves what a pattern makes of random values as much as rounded scores move a pattern.
        """
        tolerances = [
            tolerance_of(dtype, self.architecture.float32_steps) for dtype in (self.dtype, *self.quantised.values())
        ]
        largest = max(tolerances, key=attrgetter("output"))
        return replace(largest, probe=largest.pattern) if self.quantised and largest.row is not None else largest

    def norm(self, module: nn.Module) -> Norm:
        """The parameters of one of the model's norms."""
        return norm_of(self.architecture, self.config, module)


def short_name(names: Sequence[str], encoder_only: bool) -> str:
    """The name of a model, and of its adapter, for titles: see :attr:`Checkpoint.short_name`."""
    parts = [Path(name).resolve().name if "/" in name and Path(name).is_dir() else name for name in names]
    return visible(" + ".join(parts) + (" (encoder)" if encoder_only else ""))


def load_checkpoint(
    source: Source,
    device: torch.device,
    dtype: torch.dtype | None,
    device_map: str | dict[str, str] | None = None,
    attention: str | None = None,
) -> Checkpoint:
    """Load a checkpoint with its tokenizer; missing or unexpected weights are errors.

    The checkpoint may hold any of the architecture's usual heads (BertModel, BertForMaskedLM, GPT2LMHeadModel, …); that
    of token or class logits is loaded, any other is left out. With a ``device_map`` (accelerate's name for one, or a
    device for each part) ``device`` is ignored. Without a ``dtype`` it is the checkpoint's own. ``attention`` is the
    implementation that it runs with; None for what transformers chooses.

    ArchitectureError where the reference attention does not reproduce the architecture, CheckpointError where weights
    or the tokenizer are missing, unexpected or damaged, OutOfMemoryError where they need more memory than is free.
    """
    if any("\ud800" <= character <= "\udfff" for character in str(source.folder)):
        raise CheckpointError(f"cannot read {source.folder}: give its folder a name in UTF-8.")
    dtype = own_dtype(source.folder) if dtype is None else dtype
    config, architecture = config_in(source.folder, dtype)
    tokenizer, notes = without_sampling(load_tokenizer(source))
    if source.tokenizer is not None:
        notes = (f"The tokenizer is that of {source.tokenizer.title}.", *notes)
    files = weight_files(source.folder)
    quantised = bool(getattr(config, "quantization_config", None))
    most_numbers = sum(path.stat().st_size for path in files) * (2 if quantised else 1)
    empty = check_sizes(source.folder, config, architecture.bare_class, most_numbers).to(dtype)
    bare = architecture.base_model(empty)
    check_fit(architecture, bare)
    if quantised:
        device_map = device_map or {"": str(device)}  # accelerate puts them where they stay
    if device_map is None:
        refuse_beyond_memory(source.title, bare, device)
    hashed = hash_of_files(source, files)
    learned = ((name, weight) for name, weight in each_weight(files) if not name.endswith(architecture.old_buffers))
    check_weights((entry for entry in learned if entry[1].is_floating_point() or not quantised), str(source.folder))
    weights = read_weights(files) if device_map is None else {}  # mapped into memory
    whole = _whole_model(source, architecture, config, weights, dtype, device_map, attention)
    loaded = _wrapped(whole, architecture, tokenizer, source.title, hashed, notes)
    for module in (loaded.model, loaded.prediction_head):
        if module is not None:
            (module if device_map else module.to(device)).eval()
    return replace(loaded, revision=source.revision, adapter=source.adapter)


def from_loaded(model: nn.Module, tokenizer: Any) -> Checkpoint:
    """Wrap a transformers model that is already in memory; it is neither moved nor converted.

    Of one of sentence-transformers it is the transformer inside, by default with its tokenizer.

    Raises:
        ArchitectureError: the reference attention does not reproduce this architecture, or the model lacks a part.
        CheckpointError: no tokenizer, weights of another kind of number or not finite, or rotary frequencies that were
            rounded by a conversion.
    """
    notes: tuple[str, ...] = ()
    if any(type(module).__module__.startswith("peft.") for module in model.modules()):
        model = merged_copy(model)
        notes = ("The adapter of peft that this model has beside its weights was merged, in a copy.",)
    if isinstance(model, nn.Sequential) and hasattr(next(iter(model), None), "auto_model"):
        outer: Any = model
        tokenizer = outer.tokenizer if tokenizer is None else tokenizer
        model = outer[0].auto_model
        steps = list[str]()
        for module in list(outer)[1:]:
            pooling = getattr(module, "pooling_mode", ())
            modes = [pooling] if isinstance(pooling, str) else pooling
            steps.append(" ".join(filter(None, [" and ".join(modes), type(module).__name__])))
        follows = f"; what follows it ({', '.join(steps)}) is not measured" if steps else ""
        notes += (f"This is the transformer inside a {type(outer).__name__}{follows}.",)
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    architecture = architecture_of(getattr(model, "config", None), dtype)
    if tokenizer is None:
        raise CheckpointError("a loaded model needs its tokenizer: pass it too, as tokenizer=tokenizer.")
    base = architecture.base_model(model)
    check_parts(architecture, base)
    hashed = check_loaded(model)
    refuse_rounded(base)
    name = getattr(model.config, "_name_or_path", "") or type(model).__name__
    tokenizer, of_tokenizer = without_sampling(tokenizer)
    return _wrapped(model, architecture, tokenizer, str(name), hashed, (*notes, *of_tokenizer))


def _wrapped(
    whole: Any,
    architecture: Architecture,
    tokenizer: Any,
    name: str,
    weights_hash: Callable[[], str],
    notes: tuple[str, ...],
) -> Checkpoint:
    """The checkpoint of a model with its head, if it has one that is measured."""
    model = architecture.base_model(whole)
    classifier = classifier_of(architecture, whole)
    head = architecture.language_head(whole) if classifier is None else None
    return Checkpoint(
        name=name,
        revision=None,
        architecture=architecture,
        model=model,
        tokenizer=tokenizer,
        language_head=head,
        weights_hash=weights_hash,
        class_head=classifier,
        weight_devices=weight_devices_of(whole),
        image_token=getattr(whole.config, "image_token_id", None),
        notes=(*notes, *architecture.notes(model.config)),
        whole=None if head is None and classifier is None else whole,
        quantised=formats_of(whole),
    )


def _whole_model(
    source: Source,
    architecture: Architecture,
    config: Any,
    weights: dict[str, Tensor],
    dtype: torch.dtype,
    device_map: str | dict[str, str] | None,
    attention: str | None,
) -> Any:
    """A model with the adapter merged, and with its head if the checkpoint or the adapter has all of it."""
    import transformers

    def build(class_name: str) -> tuple[Any, dict[str, Any]]:
        model_class = architecture.declared("class_prefix", transformers, class_name)
        options: dict[str, Any] = {"state_dict": dict(weights)}
        what = f"transformers cannot load the checkpoint in {source.folder}"
        if attention is not None:
            what += f" with --attention {attention}; leave it out, or take eager"
        with calling_transformers(what), ExitStack() as stack:
            if device_map is not None:
                # for weights on disk that need conversion; it goes with the model
                offloaded = stack.enter_context(TemporaryDirectory(prefix="attnviz-offload-"))
                options = {"device_map": device_map, "offload_folder": offloaded, "local_files_only": True}
            model, report = model_class.from_pretrained(
                None if device_map is None else source.folder,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                experts_implementation="eager",  # torch's grouped product takes neither float64 nor every width
                ignore_mismatched_sizes=True,  # reported, so that the message is ours
                output_loading_info=True,
                **options,
            )
            if device_map is not None:
                weakref.finalize(model.get_input_embeddings(), stack.pop_all().close)
        if source.adapter is not None:
            merge_adapter(model, architecture, source.adapter)
        return model, report

    adapted, of_adapter = saved_head(source.adapter)
    if of_adapter and config.num_labels != (n_classes := next(iter(of_adapter.values()))):
        config.num_labels = n_classes  # which forgets the names of others
    named = [architecture.class_prefix + adapted] if of_adapter else getattr(config, "architectures", None) or ()
    task = task_of(architecture, config, named)
    whole, report = build(architecture.class_prefix + task if task else architecture.language_class)
    report["missing_keys"] = [key for key in report["missing_keys"] if key not in of_adapter]
    report["mismatched_keys"] = [entry for entry in report["mismatched_keys"] if entry[0] not in of_adapter]
    inside = f"{whole.base_model_prefix}."
    pooler = tuple(inside + weight for weight in architecture.optional_weights) if task else ()
    if any(key.startswith(pooler) or not key.startswith(inside) for key in report["missing_keys"]):
        model, report = build(f"{architecture.class_prefix}Model")
        check_report(source.folder, architecture, report)
        return model
    for kind in ("missing_keys", "unexpected_keys"):
        report[kind] = [key.removeprefix(inside) for key in report[kind]]
    # the pooler is no part of the model with this head, and may be in its checkpoint
    optional = architecture.optional_weights
    report["unexpected_keys"] = [key for key in report["unexpected_keys"] if not key.startswith(optional)]
    check_report(source.folder, architecture, report)
    return whole
