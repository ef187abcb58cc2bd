"""PyTorch models with random weights, in float32: those of timm and transformers, and the ones that benchmarks time.

A model is made anew from a seed, so that a run can be repeated. Weights that a fresh model holds at one value
(zeros in a last layer, layer scales of 1e-6) are drawn at random too, and batch norms take the statistics of
random inputs: otherwise outputs would be about zero, or overflow, and a comparison would say nothing.

timm imports torchvision for its data transforms only. Where it is not installed, empty classes stand in.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

Inputs = tuple[Any, ...]
"""The tensors of one call, in order."""


@dataclass(frozen=True)
class Definition:
    """A model and its inputs at any batch size.

    `make` gives the module, in eval mode; `inputs(batch, seed)` gives tensors. `batch_axes`: for each input, the
    axis that holds the batch, or None for an input that has none.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    batch_axes: tuple[int | None, ...] = (0,)
    needs: str = "torch"  # the package that defines it
    batch: int = 2  # of the static program
    note: str = ""
    channels_last: bool = False  # a form in which eager torch may run it faster

    @property
    def available(self) -> bool:
        """Whether the package that defines it is installed."""
        return find_spec(self.needs) is not None


# Weights and inputs.


def settle(model: nn.Module, inputs: Inputs, seed: int = 0) -> nn.Module:
    """The model with weights of one value drawn at random, and batch norms that fit random inputs; in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() < 2 or weight.min() != weight.max():
                continue
            noise = torch.randn(weight.shape, generator=generator)
            value = float(weight.flatten()[0])
            if weight.dim() > 1 and weight.shape[0] > 1:  # a matrix, left at zero
                weight.copy_(noise / weight[0].numel() ** 0.5)
            elif value == 1:  # the scale of a norm
                weight.copy_(1 + 0.1 * noise)
            elif 0 < value < 0.1:  # the scale of a branch
                weight.copy_(0.3 + 0.05 * noise)
            else:
                weight.copy_(value + 0.1 * noise)
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)]
        if norms:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the mean over all calls
            model.eval()
            for norm in norms:
                norm.train()
            model(*inputs)
    return model.eval()


def _images(size: int, batch: int, seed: int) -> Inputs:
    return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed)),)


def _normal(shape: Sequence[int], batch: int, seed: int) -> Inputs:
    return (torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed)),)


def _tokens(length: int, words: int, batch: int, seed: int) -> Inputs:
    return (torch.randint(0, words, (batch, length), generator=torch.Generator().manual_seed(seed)),)


# timm, at its default sizes.

_TIMM = (
    "resnet50", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224", "deit_tiny_patch16_224", "maxvit_tiny_tf_224", "densenet121", "inception_v3",
    "ghostnet_100", "mixer_s32_224", "mobilevit_xxs", "levit_128s", "poolformer_s12", "regnety_002",
    "xcit_nano_12_p16_224", "beit_base_patch16_224", "hrnet_w18_small", "nfnet_l0",
)  # fmt: skip
_IMAGE_SIZES = {"inception_v3": 299, "mobilevit_xxs": 256}
_TIMM_OPTIONS: dict[str, dict[str, Any]] = {"beit_base_patch16_224": {"depth": 2}}


class _EmptyClass(type):
    """A class whose every attribute is its name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision and its modules, all of whose names are empty classes."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module: Any = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "0"

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _EmptyClass(name, (), {"__init__": lambda self, *arguments, **named: None})

        module.__getattr__ = attribute
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run: a module is its names."""


@contextmanager
def _torchvision() -> Iterator[None]:
    """torchvision, or the stand-in while timm is imported."""
    if "timm" in sys.modules or find_spec("torchvision") is not None:
        yield
        return
    finder = _StandIn()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def timm_model(name: str, seed: int = 0) -> nn.Module:
    """A model of timm, with its defaults and random weights."""
    with _torchvision():
        import timm
    torch.manual_seed(seed)
    model = timm.create_model(name, pretrained=False, **_TIMM_OPTIONS.get(name, {})).eval()
    return settle(model, _images(_IMAGE_SIZES.get(name, 224), 4, 1))


def _timm(name: str) -> Definition:
    size = _IMAGE_SIZES.get(name, 224)
    note = "depth 2" if name in _TIMM_OPTIONS else ""
    return Definition(f"timm:{name}", partial(timm_model, name), partial(_images, size), needs="timm", note=note)


# transformers, at small sizes.

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_WORDS = {"vocab_size": 100}
_GROUPED = {**_SMALL, **_WORDS, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_DECODER = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, **_WORDS,
}  # fmt: skip
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@cache
def transformers_package() -> Any:
    """The package transformers.

    It looks for a package named kernels, and where this folder is on the path would find the benchmark.
    """
    here, path = Path(__file__).resolve().parent, list(sys.path)
    sys.path[:] = [entry for entry in path if Path(entry).resolve() != here]
    try:
        import transformers
        import transformers.modeling_utils
    finally:
        sys.path[:] = path
    transformers.logging.set_verbosity_error()
    return transformers


class First(nn.Module):
    """The first output of a model of transformers, without a cache of keys and values."""

    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, x: Any) -> Any:
        return self.model(x, **self.options)[0]


def transformers_model(kind: str, options: dict[str, Any], cached: bool = False, seed: int = 0) -> nn.Module:
    """`kind`Model of `kind`Config with `options`, and random weights; `cached`: it is told to keep no cache."""
    package = transformers_package()
    torch.manual_seed(seed)
    configuration = getattr(package, f"{kind.removesuffix('Encoder')}Config")(**options)
    model = getattr(package, f"{kind}Model")(configuration)
    found = First(model, {"use_cache": False} if cached else {}).eval()
    if kind == "Rwkv":  # its first run rescales its weights
        with torch.no_grad():
            found(torch.zeros(1, 1, dtype=torch.int64))
    return found


def _whisper_encoder() -> nn.Module:
    package = transformers_package()
    torch.manual_seed(0)
    return (  # type: ignore[no-any-return]
        package.WhisperModel(package.WhisperConfig(**_DECODER, **_SPECIAL, decoder_start_token_id=3))
        .get_encoder()
        .eval()
    )


class _Clip(nn.Module):
    """CLIP's scores of images against texts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Any, images: Any) -> Any:
        return self.model(input_ids=words, pixel_values=images).logits_per_image


def _clip() -> nn.Module:
    package = transformers_package()
    torch.manual_seed(0)
    text = {**_SMALL, **_WORDS, "max_position_embeddings": 16, **_SPECIAL}
    vision = {**_SMALL, "image_size": 32, "patch_size": 8}
    configuration = package.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    return _Clip(package.CLIPModel(configuration)).eval()


def _clip_inputs(batch: int, seed: int) -> Inputs:
    return (*_tokens(12, 90, batch, seed), *_images(32, batch, seed))


def _transformers() -> Iterator[Definition]:
    words = partial(_tokens, 12, 90)
    small = {**_SMALL, **_WORDS}
    head = {"head_dim": 16}
    table: list[tuple[str, str, dict[str, Any], Callable[[int, int], Inputs], bool]] = [
        ("bert", "Bert", small, words, False),
        ("distilbert", "DistilBert", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, **_WORDS}, words,
         False),
        ("roberta", "Roberta", small, words, False),
        ("albert", "Albert", {"embedding_size": 32, **small}, words, False),
        ("deberta-v2", "DebertaV2", small, words, False),
        ("gpt2", "GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, **_WORDS, **_SPECIAL}, words, True),
        ("llama", "Llama", _GROUPED, words, True),
        ("qwen2", "Qwen2", _GROUPED, words, True),
        ("qwen3", "Qwen3", {**_GROUPED, **head}, words, True),
        ("mistral", "Mistral", _GROUPED, words, True),
        ("gemma2", "Gemma2", {**_GROUPED, **head}, words, True),
        ("phi3", "Phi3", {**_GROUPED, "pad_token_id": 0}, words, True),
        ("mixtral", "Mixtral", _GROUPED, words, True),
        ("gpt_neox", "GPTNeoX", small, words, True),
        ("opt", "OPT", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
                        "word_embed_proj_dim": 64, **_WORDS}, words, True),
        ("bloom", "Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, **_WORDS}, words, True),
        ("t5-encoder", "T5Encoder", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
                                     **_WORDS}, words, False),
        ("bart", "Bart", {**_DECODER}, words, True),
        ("vit", "ViT", {**_SMALL, "image_size": 32, "patch_size": 8}, partial(_images, 32), False),
        ("dinov2", "Dinov2", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
                              "patch_size": 8}, partial(_images, 32), False),
        ("segformer", "Segformer", {}, partial(_images, 64), False),
        ("mamba", "Mamba", {"hidden_size": 64, "num_hidden_layers": 2, **_WORDS}, words, True),
        ("mamba2", "Mamba2", {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16,
                              "state_size": 16, "n_groups": 1, "chunk_size": 8, **_WORDS}, words, True),
        ("wav2vec2", "Wav2Vec2", {**_SMALL, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
         partial(_normal, (4000,)), False),
        ("rwkv", "Rwkv", {"hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64,
                          "intermediate_size": 128, "context_length": 32, **_WORDS}, words, True),
    ]  # fmt: skip
    for name, kind, options, inputs, cached in table:
        make = partial(transformers_model, kind, options, cached)
        yield Definition(f"transformers:{name}", make, inputs, needs="transformers")
    yield Definition(
        "transformers:whisper-encoder", _whisper_encoder, partial(_normal, (80, 3000)), needs="transformers"
    )
    yield Definition("transformers:clip", _clip, _clip_inputs, (0, 0), needs="transformers")


class _Lstm(nn.Module):
    """Two layers in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0]


def _lstm() -> nn.Module:
    torch.manual_seed(0)
    return _Lstm().eval()


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()


def models() -> list[Definition]:
    """The 49: 20 of timm, 27 of transformers, 2 of torch."""
    return [
        *(_timm(name) for name in _TIMM),
        *_transformers(),
        Definition("torch:LSTM", _lstm, partial(_normal, (12, 16))),
        Definition("torch:TransformerEncoder", _encoder, partial(_normal, (10, 64))),
    ]


# The models that benchmarks time.


def _bert(layers: int = 12) -> nn.Module:
    package = transformers_package()

    class Masked(nn.Module):
        """The last hidden state, of words and a mask."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, words: Any, mask: Any) -> Any:
            return self.model(input_ids=words, attention_mask=mask).last_hidden_state

    torch.manual_seed(0)
    config = package.BertConfig(num_hidden_layers=layers)
    return Masked(package.BertModel(config, add_pooling_layer=False)).eval()


def _bert_inputs(length: int, batch: int, seed: int) -> Inputs:
    return (*_tokens(length, 30000, batch, seed), torch.ones(batch, length, dtype=torch.int64))


@dataclass(frozen=True)
class LlamaSizes:
    """The sizes of Llama 3.2 1B, but for the number of layers (16) and of words (128,256)."""

    layers: int
    width: int = 2048
    heads: int = 32
    kept_heads: int = 8
    hidden: int = 8192
    words: int = 32000
    positions: int = 1024

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class _LlamaLayer(nn.Module):
    """Attention with grouped heads and rotary positions over a cache, and a gated feed-forward part."""

    def __init__(self, sizes: LlamaSizes, kept_batch: int) -> None:
        super().__init__()
        self.sizes = sizes
        kept = sizes.kept_heads * sizes.head_width
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, kept, bias=False)
        self.value = nn.Linear(sizes.width, kept, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)
        self.norm = nn.RMSNorm(sizes.width)
        self.norm_hidden = nn.RMSNorm(sizes.width)
        if kept_batch:
            shape = kept_batch, sizes.kept_heads, sizes.positions, sizes.head_width
            self.register_buffer("keys", torch.randn(shape))
            self.register_buffer("values", torch.randn(shape))

    def heads(self, x: Any, count: int) -> Any:
        batch, length, _ = x.shape
        return x.view(batch, length, count, self.sizes.head_width).transpose(1, 2)

    def rotated(self, x: Any, cosine: Any, sine: Any) -> Any:
        half = self.sizes.head_width // 2
        return x * cosine + torch.cat((-x[..., half:], x[..., :half]), -1) * sine

    def projected(self, x: Any, cosine: Any, sine: Any) -> tuple[Any, Any, Any]:
        y = self.norm(x)
        query, key = self.heads(self.query(y), self.sizes.heads), self.heads(self.key(y), self.sizes.kept_heads)
        value = self.heads(self.value(y), self.sizes.kept_heads)
        return self.rotated(query, cosine, sine), self.rotated(key, cosine, sine), value

    def finished(self, x: Any, attended: Any) -> Any:
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        y = self.norm_hidden(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    def functional(self, x: Any, keys: Any, values: Any, position: Any, rotary: Any, mask: Any) -> tuple[Any, Any, Any]:
        """One step over caches that the caller holds; heads are repeated, as older code does."""
        query, key, value = self.projected(x, *rotary)
        keys, values = keys.index_copy(2, position, key), values.index_copy(2, position, value)
        group = self.sizes.heads // self.sizes.kept_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        attended = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return self.finished(x, attended), key, value

    def in_place(self, x: Any, position: Any, rotary: Any, mask: Any) -> Any:
        """One step over caches that the layer holds and writes in place, with grouped attention."""
        query, key, value = self.projected(x, *rotary)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        attended = nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        return self.finished(x, attended)


class LlamaStep(nn.Module):
    """One decoding step; `kept_batch` 0: the caller holds the caches, otherwise the model does, for that batch."""

    def __init__(self, sizes: LlamaSizes, kept_batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(_LlamaLayer(sizes, kept_batch) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)


class _LlamaFunctional(LlamaStep):
    def forward(
        self, words: Any, keys: Any, values: Any, position: Any, cosine: Any, sine: Any, mask: Any
    ) -> tuple[Any, Any, Any]:
        x, new = self.embedding(words), []
        for number, layer in enumerate(self.layers):
            x, key, value = layer.functional(x, keys[number], values[number], position, (cosine, sine), mask)
            new.append((key, value))
        return self.head(self.norm(x)), torch.stack([k for k, _ in new]), torch.stack([v for _, v in new])


class _LlamaInPlace(LlamaStep):
    def forward(self, words: Any, position: Any, cosine: Any, sine: Any, mask: Any) -> Any:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer.in_place(x, position, (cosine, sine), mask)
        return self.head(self.norm(x))


def _llama(sizes: LlamaSizes, kept_batch: int = 0) -> nn.Module:
    torch.manual_seed(0)
    return (_LlamaInPlace if kept_batch else _LlamaFunctional)(sizes, kept_batch).eval()


def _llama_inputs(sizes: LlamaSizes, kept: bool, batch: int, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, sizes.words, (batch, 1), generator=generator)
    angles = torch.randn(1, sizes.head_width, generator=generator)
    mask = torch.zeros(1, 1, 1, sizes.positions)
    position = torch.tensor([sizes.positions // 2 + seed])
    step: Inputs = (position, angles.cos(), angles.sin(), mask)
    if kept:
        return (words, *step)
    shape = sizes.layers, batch, sizes.kept_heads, sizes.positions, sizes.head_width
    caches = (torch.randn(shape, generator=generator) for _ in range(2))
    return (words, *caches, *step)


def llama(layers: int, batch: int, kept: bool = False, positions: int = 1024) -> Definition:
    """One decoding step of a model as wide as Llama 3.2 1B. `kept`: the model holds the caches, at this batch."""
    sizes = LlamaSizes(layers, positions=positions)
    axes: tuple[int | None, ...] = (0, None, None, None, None) if kept else (0, 1, 1, None, None, None, None)
    name = f"llama_{layers}_layers_b{batch}_t{positions}{'_kept' if kept else ''}"
    return Definition(
        name,
        partial(_llama, sizes, batch if kept else 0),
        partial(_llama_inputs, sizes, kept),
        axes,
        batch=batch,
        note=f"{layers} layers of 16",
    )


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = [(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*(part for layer in layers for part in layer)).eval()


def timed(timm_name: str, label: str, batch: int) -> Definition:
    """A model of timm at one batch size."""
    make = partial(timm_model, timm_name)
    images = partial(_images, 224)
    convolutions = label in ("resnet50", "mobilenetv3", "efficientnet_b0", "convnext_tiny")
    return Definition(f"{label}_b{batch}", make, images, needs="timm", batch=batch, channels_last=convolutions)


def bert(batch: int, length: int, layers: int = 12) -> Definition:
    """BERT base at one size."""
    name = f"bert_base_b{batch}_s{length}"
    inputs = partial(_bert_inputs, length)
    return Definition(name, partial(_bert, layers), inputs, (0, 0), needs="transformers", batch=batch)


def mlp(batch: int) -> Definition:
    """Twelve layers of 512: linear, layer norm, GELU."""
    return Definition(f"mlp12x512_b{batch}", _mlp, partial(_normal, (512,)), batch=batch)


def fourteen(llama_layers: int = 2) -> list[Definition]:
    """The models that are timed against PyTorch on GPUs; here in float32."""
    return [
        timed("resnet50", "resnet50", 1),
        timed("resnet50", "resnet50", 32),
        timed("vit_base_patch16_224", "vit_b16", 1),
        timed("vit_base_patch16_224", "vit_b16", 32),
        bert(1, 128),
        bert(32, 128),
        bert(8, 512),
        llama(llama_layers, 1),
        llama(llama_layers, 16),
        mlp(1),
        mlp(256),
        timed("mobilenetv3_large_100", "mobilenetv3", 1),
        timed("convnext_tiny", "convnext_tiny", 8),
        timed("swin_tiny_patch4_window7_224", "swin_tiny", 8),
    ]


def peers() -> list[Definition]:
    """Ten models that are timed on one core."""
    return [
        timed("resnet50", "resnet50", 1),
        timed("mobilenetv3_large_100", "mobilenetv3", 1),
        timed("convnext_tiny", "convnext_tiny", 1),
        timed("swin_tiny_patch4_window7_224", "swin_tiny", 1),
        timed("vit_base_patch16_224", "vit_b16", 1),
        timed("efficientnet_b0", "efficientnet_b0", 1),
        bert(1, 128),
        llama(4, 1, kept=True),
        mlp(1),
        mlp(256),
    ]
