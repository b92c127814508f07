"""A checkpoint whose tensors are read one at a time: its model never lies in memory as a whole.

Takes safetensors files that have a tensor for every name in the model; any other checkpoint is
loaded by transformers. Knows no kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, GenerationConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from draftproof import hub
from draftproof.runners import claims, loading, packing
from draftproof.runners.outline import Outline, outlined, shapes_of
from draftproof.runners.weights import Blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
_DTYPES = dict(BF16=torch.bfloat16, F16=torch.float16, F32=torch.float32, F64=torch.float64)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file."""

    file: str
    shape: list[int]
    dtype: torch.dtype | None  # None: it is not of a floating type
    kind: str = ""  # the type's name in safetensors


class Checkpoint:
    """`Weights` that lie in files.

    model: its modules, with the tensors that are computed (of the rotary embedding) and no others;
    or an outline of it.
    files: which file holds a tensor. dtype: what tensors become when they are read.
    """

    in_files = True

    def __init__(
        self, model: PreTrainedModel | Outline, files: Mapping[str, str], dtype: torch.dtype
    ) -> None:
        self.model: Any = model
        self.files, self.dtype = files, dtype
        self.config: Any = model.config.get_text_config()
        self.tied = HEAD not in files
        self.paths: Sequence[Path] = [Path(file) for file in sorted({*files.values()})]

    @property
    def precision(self) -> str | None:
        """Of blocks of whole numbers that are multiplied as they lie; None: it has none."""
        return None

    @property
    def compared(self) -> bool:
        """Whether packed weights have to give the logits that transformers gives."""
        return True

    def __contains__(self, name: str) -> bool:
        return self._place(name) in self.files

    def __getitem__(self, name: str) -> Tensor:
        """A view of the file: its pages go when the view goes."""
        place = self._place(name)
        with opened(self.files[place]) as file:
            tensor: Tensor = file.get_tensor(place)
        return tensor.to(self.dtype)

    def format(self, name: str) -> int | None:
        return None

    def order(self, name: str) -> Tensor | None:
        return None

    def blocks(self, name: str) -> Blocks:
        raise KeyError(name)

    def drop(self, module: str) -> None:
        """Nothing is held."""

    def embeddings(self) -> Tensor | None:
        # A copy, or the view would keep the file's pages.
        return None if self.tied else self[EMBEDDINGS].to(torch.bfloat16, copy=True)

    def rotary(self) -> tuple[Tensor, float]:
        outlined = isinstance(self.model, Outline)
        rotary: Any = self.model if outlined else self.model.get_submodule("model.rotary_emb")
        return rotary.inv_freq, float(rotary.attention_scaling)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """The model can run meanwhile: each module has its tensors for the length of its call."""
        with ExitStack() as hooks:
            for path, module in self.model.named_modules():
                if names := [name for name, _ in module.named_parameters(recurse=False)]:
                    self._fill(path, module, names, hooks)
            yield

    def _fill(self, path: str, module: torch.nn.Module, names: list[str], hooks: ExitStack) -> None:
        empty = {name: module.get_parameter(name) for name in names}

        def take(*_: Any) -> None:
            for name in names:
                tensor = torch.nn.Parameter(self[f"{path}.{name}"], requires_grad=False)
                module._parameters[name] = tensor

        def leave(*_: Any) -> None:
            module._parameters.update(empty)

        hooks.callback(leave)
        for handle in (
            module.register_forward_pre_hook(take),
            module.register_forward_hook(leave),
        ):
            hooks.callback(handle.remove)

    def _place(self, name: str) -> str:
        return EMBEDDINGS if name == HEAD and self.tied else name


def find(
    name: str,
    *,
    dtype: torch.dtype | None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Checkpoint | None:
    """The checkpoint of a folder or hub id, or None where transformers should load it.

    dtype: None is the checkpoint's own. Raises `ValueError`: a file that is damaged, a tensor of
    another shape than the configuration says.
    """
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    config = loading.configuration(name, **options)
    if not is_known(config) or hasattr(config, "quantization_config"):
        return None
    del options["trust_remote_code"]  # no code comes with it
    options |= hub.options(name)
    tensors = tensors_of(files_of(name, options))
    stored = (each.dtype for each in tensors.values() if each.dtype is not None)
    wanted = dtype or getattr(config, "dtype", None) or next(stored, None)
    if not isinstance(wanted, torch.dtype):
        return None
    model = outlined(config, wanted)
    shapes = shapes_of(model)
    if config.tie_word_embeddings and HEAD not in tensors:
        del shapes[HEAD]
    elif config.tie_word_embeddings:
        return None  # two matrices that may be one: transformers compares them
    if shapes.keys() - tensors.keys():
        return None  # other names
    for each, shape in shapes.items():
        if (found := tensors[each]).shape != shape:
            raise loading.Refused(
                f"{each} in {found.file} has the shape {found.shape}, and the configuration says "
                f"{shape}: one of them belongs to another model"
            )
    with suppress(OSError):  # without one the configuration says enough
        model.generation_config = GenerationConfig.from_pretrained(name, **options)
    return Checkpoint(model, {each: tensors[each].file for each in tensors}, wanted)


def is_known(config: Any) -> bool:
    """Whether the model is of a class that is packed, whole, and of transformers' own code."""
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    classes = {*(config.architectures or ())}
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and classes <= {*packing.CLASSES}
    return known and bool(classes) and not own_code


def tensors_of(files: Sequence[str]) -> dict[str, Stored]:
    """What the files hold, by name."""
    found = {}
    for path in files:
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118, as it is no mapping
                part = file.get_slice(name)
                kind = part.get_dtype()
                found[name] = Stored(path, list(part.get_shape()), _DTYPES.get(kind), kind)
    return found


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """A safetensors file. Raises `ValueError` where it is damaged, or its end is missing."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        size = Path(path).stat().st_size if Path(path).exists() else 0
        raise ValueError(
            f"{path} ({size:,} bytes) cannot be read, {error}: it is cut short or damaged, fetch "
            "it again"
        ) from error


def files_of(name: str, options: dict[str, Any]) -> list[str]:
    """Its safetensors files, fetched if they have to be; none where it has no such."""
    quiet = {"_raise_exceptions_for_missing_entries": False}
    whole = cached_file(name, SAFE_WEIGHTS_NAME, **options, **quiet)
    if whole is not None:
        return [whole]
    index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, **options, **quiet)
    if index is None:
        return []
    claims.check_index(Path(index))
    shards, _ = get_checkpoint_shard_files(name, index, **options)
    return list(shards)
