"""Medusa heads (Cai et al., 2401.10774): small layers over a target's final states that predict tokens further ahead.

Head d reads the state that the next token is drawn from, and predicts the token d + 1 after that one. Its blocks are
x + silu(W x + b), and its logits those of an output head: its own, as in published files, or the target's rows of the
most frequent ids, as in the heads that `outrider distill TARGET --kind medusa` makes. The latter's blocks also read the
embeddings of the tokens in between, which are known when a tree is built level by level (Hydra: Ankner et al.,
2402.05109).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from core.errors import ModelUnreadableError, PairMismatchError, SettingsError, first_line
from core.files import explain_write_error, file_digest, read_json, require_space, scratch_folder
from core.models.catalogue import EMBEDDED, MEDUSA_HEADS
from core.models.child import STALL_S, ChildExit, ChildFailedError, exit_code, limit, python_module, supervise

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

CONFIG, WEIGHTS, PICKLE = "config.json", "medusa_lm_head.safetensors", "medusa_lm_head.pt"

_CHILD_MEMORY = 2 * 2**30
"""Bytes for torch, beside the tensors."""

_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:(linear)\.(weight|bias)|(weight))")


@dataclass(frozen=True, slots=True)
class HeadsConfig:
    """What the tensors don't show.

    Attributes:
        target: the reference of the model that they were trained for.
        target_norm: fingerprint of that model's final norm, see `norm_fingerprint`.
        vocabulary: ids that they propose, whose rows of the target's head they use; None for heads of their own.
    """

    target: str = ""
    target_norm: str = ""
    vocabulary: list[int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a configuration of transformers' is written, which a training's checkpoints ask for, too."""
        return {"model_type": MEDUSA_HEADS, **asdict(self)}


class MedusaBlock(nn.Module):
    """x + silu(W [x, embeddings of tokens] + b); one that reads no tokens is the paper's."""

    def __init__(self, hidden_size: int, num_tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size * (1 + num_tokens), hidden_size)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """x (n, H), and the embeddings (n, T, H) of the tokens after its own."""
        num_read = self.linear.in_features // x.shape[-1] - 1
        # The row is the state, then the tokens in the order of the text.
        row = torch.cat((x, tokens[:, :num_read].flatten(1)), -1) if num_read else x
        return x + functional.silu(self.linear(row))


class MedusaHeads(nn.Module):
    """The blocks of all heads.

    Attributes:
        config: what else belongs to them.
        blocks: of each head.
        outputs: (V, H) of each head, if they have output heads of their own; else empty.
    """

    def __init__(self, hidden_size: int, tokens_read: list[list[int]], config: HeadsConfig) -> None:
        """tokens_read: how many tokens each block of each head reads."""
        super().__init__()
        self.config = config
        self.hidden_size = hidden_size
        self.blocks = [[MedusaBlock(hidden_size, number) for number in head] for head in tokens_read]
        for index, head in enumerate(self.blocks):
            self.add_module(str(index), nn.ModuleList(head))
        self.outputs: list[Tensor] = []

    @property
    def reads_tokens(self) -> bool:
        """Whether a head's prediction depends on the tokens before it, and so differs between a tree's branches."""
        return any(block.linear.in_features > self.hidden_size for head in self.blocks for block in head)

    def __len__(self) -> int:
        return len(self.blocks)

    def forward(self, head: int, states: Tensor, tokens: Tensor) -> Tensor:
        """States (n, H) for the output head, of the target's states (n, H) and the embeddings (n, head + 1, H) of the
        tokens between each state's own and the one to predict."""
        for block in self.blocks[head]:
            states = block(states, tokens)
        return states


def norm_fingerprint(model: Any) -> str:
    """Identifies a model by the weights of its final norm, which no format quantises; "" if it has none that is known.

    It is the same in float32 and bfloat16, and in float16 if the weights were made in bfloat16.
    """
    norm = getattr(getattr(model, "base_model", None), "norm", None)
    if norm is None:
        return ""
    return hashlib.sha256(norm.weight.detach().cpu().bfloat16().float().numpy().tobytes()).hexdigest()[:32]


def save_heads(heads: MedusaHeads, folder: Path) -> None:
    """Write the heads' folder, in bfloat16."""
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in heads.state_dict().items()}
    (folder / CONFIG).write_text(json.dumps(heads.config.to_dict()) + "\n", "utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def find_heads(target: LanguageModel) -> Path | None:
    """The heads that ship for a target; None if there are none."""
    own = norm_fingerprint(target.model)
    for config in sorted(EMBEDDED.glob(f"*/{CONFIG}")):
        with contextlib.suppress(ModelUnreadableError):
            known = _read_config(config)
            if known is not None and known.target_norm and known.target_norm == own:
                return config.parent
    return None


def is_heads(folder: Path) -> bool:
    """Whether a folder's config.json says that `outrider distill` made the heads in it."""
    with contextlib.suppress(ModelUnreadableError):
        return _read_config(folder / CONFIG) is not None
    return False


def load_heads(path: Path, target: LanguageModel, check_cancelled: Callable[[], None] = lambda: None) -> MedusaHeads:
    """Heads on the target's device and in its precision, from a folder or a file.

    A folder of `outrider distill TARGET --kind medusa`, or published heads: `medusa_lm_head.pt` or .safetensors.

    Raises:
        SettingsError: there are no heads at this path.
        ModelUnreadableError: the file is damaged, or holds something else.
        PairMismatchError: they were made for another target, or one of another size or vocabulary.
        torch.OutOfMemoryError, RuntimeError: no memory is left for them.
    """
    config_file, weights = _files(path)
    config = (_read_config(config_file) if config_file.is_file() else None) or HeadsConfig()
    # In float16 a norm may have been rounded twice, so that good heads would be refused.
    own = "" if target.dtype is torch.float16 else norm_fingerprint(target.model)
    if own and config.target_norm and config.target_norm != own:
        raise _other_target(path, f"they were trained for {config.target or 'a model with other weights'}")
    if weights.suffix != ".safetensors":
        weights = _converted(weights, check_cancelled)
    try:
        with safe_open(weights, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, first_line(error)) from error
    heads = _assemble(path, tensors, config, target)
    return heads.to(target.device, target.dtype).eval().requires_grad_(False)


def _assemble(path: Path, tensors: Mapping[str, Tensor], config: HeadsConfig, target: LanguageModel) -> MedusaHeads:
    """The heads that the tensors describe: how many, of how many blocks, reading how many tokens."""
    rows, hidden_size = target.model.get_output_embeddings().weight.shape
    found: dict[int, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        matched = _NAME.fullmatch(name)
        if matched is None or not tensor.is_floating_point():
            raise _unreadable(path, f"it holds {name!r}, which is not part of a Medusa head")
        if not tensor.isfinite().all():
            raise _unreadable(path, f"{name!r} holds NaN or infinity")
        kind = matched[4] if matched[3] else "output"
        found.setdefault(int(matched[1]), {}).setdefault(int(matched[2]), {})[kind] = tensor
    if not found or sorted(found) != list(range(len(found))):
        raise _unreadable(path, "its heads are not numbered from 0 on")
    tokens_read: list[list[int]] = []
    outputs, state = [], {}
    for index in range(len(found)):
        parts = dict(sorted(found[index].items()))
        if list(parts) != list(range(len(parts))):
            raise _unreadable(path, f"the blocks of head {index} are not numbered from 0 on")
        if "output" in parts[len(parts) - 1]:
            outputs.append(parts.popitem()[1]["output"])
        tokens_read.append([])
        for number, part in parts.items():
            weight, bias = part.get("weight"), part.get("bias")
            if part.keys() != {"weight", "bias"} or weight is None or bias is None or weight.dim() != 2:
                raise _unreadable(path, f"block {number} of head {index} needs one weight and one bias")
            read, rest = divmod(weight.shape[1], hidden_size)
            if weight.shape[0] != hidden_size or rest or bias.shape != (hidden_size,):
                raise _other_target(path, f"their hidden size is {weight.shape[0]}, this target's is {hidden_size}")
            if not 1 <= read <= index + 2:
                raise _unreadable(path, f"head {index} reads {read - 1} tokens")
            tokens_read[index].append(read - 1)
            state[f"{index}.{number}.linear.weight"] = weight
            state[f"{index}.{number}.linear.bias"] = bias
    _check_outputs(path, outputs, config, len(found), (rows, hidden_size), target.vocab_size)
    with torch.device("meta"):
        heads = MedusaHeads(hidden_size, tokens_read, config)
    heads.load_state_dict(state, assign=True)
    heads.outputs = [output.to(target.device, target.dtype) for output in outputs]
    return heads


def _check_outputs(
    path: Path, outputs: list[Tensor], config: HeadsConfig, num_heads: int, shape: tuple[int, int], vocab_size: int
) -> None:
    """Output heads of their own have the target's shape (V, H); a map of ids stays within its vocabulary."""
    for output in outputs:
        if tuple(output.shape) != shape:
            theirs = "x".join(map(str, output.shape))
            raise _other_target(path, f"their output heads are {theirs}, this target's is {shape[0]}x{shape[1]}")
    ids = config.vocabulary
    if len(outputs) not in ((0,) if ids is not None else (0, num_heads)):
        raise _unreadable(path, "some of its heads have an output of their own, and some have none")
    if ids is not None and not (ids and len(set(ids)) == len(ids) and min(ids) >= 0 and max(ids) < vocab_size):
        raise _other_target(path, f"their vocabulary must list different ids from 0 to {vocab_size - 1}")


def _files(path: Path) -> tuple[Path, Path]:
    """The configuration, which need not exist, and the weights."""
    with contextlib.suppress(OSError):  # As of a name that is too long.
        if path.is_file() and path.suffix in (".safetensors", ".pt", ".bin"):
            return path.with_name(CONFIG), path
        for name in (WEIGHTS, PICKLE):
            if (path / name).is_file():
                return path / CONFIG, path / name
    raise SettingsError(
        f"There are no Medusa heads at {str(path)!r}. Name a folder or file with {WEIGHTS} or {PICKLE}."
    )


def _read_config(file: Path) -> HeadsConfig | None:
    """None if the file describes something else, such as published heads, whose tensors show everything."""
    try:
        values = read_json(file)
    except (OSError, ValueError) as error:
        raise _unreadable(file.parent, first_line(error)) from error
    if not isinstance(values, dict) or values.pop("model_type", None) != MEDUSA_HEADS:
        return None
    ids = values.get("vocabulary")
    are_ids = ids is None or (isinstance(ids, list) and all(type(item) is int for item in ids))
    if not values.keys() <= {"target", "target_norm", "vocabulary"} or not are_ids:
        raise _unreadable(file.parent, f"its {CONFIG} is damaged")
    return HeadsConfig(str(values.get("target", "")), str(values.get("target_norm", "")), ids)


def _unreadable(path: Path, reason: str) -> ModelUnreadableError:
    return ModelUnreadableError(
        f"The Medusa heads in {path.name!r} can't be read ({reason.rstrip('.')}). Get them again."
    )


def _other_target(path: Path, reason: str) -> PairMismatchError:
    return PairMismatchError(
        f"The Medusa heads in {path.name!r} belong to another target: {reason}. Choose that target."
    )


# --- Pickles ----------------------------------------------------------------------------------------------------


def _converted(path: Path, check_cancelled: Callable[[], None]) -> Path:
    """The safetensors of a pickle, which a child process reads once, as tensors only; named by the file's content."""
    kept = platformdirs.user_cache_path("outrider", appauthor=False) / "heads"
    try:
        result = kept / f"{file_digest(path, check_cancelled)[:32]}.safetensors"
        if result.is_file():
            return result
        require_space(f"{path.name!r} converted", path.stat().st_size, kept, "free some space")
        memory = _CHILD_MEMORY + 3 * path.stat().st_size
        with scratch_folder(kept, ".converting-") as scratch:
            for _ in supervise(
                python_module("core.models.medusa_heads", path.resolve(), scratch / WEIGHTS, str(memory)),
                folder=scratch,
                memory_bytes=memory,
                check_cancelled=check_cancelled,
            ):
                pass
            (scratch / WEIGHTS).replace(result)
    except ChildFailedError as error:
        reason = "it needs too much memory" if error.code == ChildExit.MEMORY else error.last_line[:160]
        raise _unreadable(path, reason or "the process that read it crashed") from error
    except OSError as error:
        raise ModelUnreadableError(explain_write_error(error, kept)) from error
    return result


def _convert(source: Path, destination: Path) -> None:
    """In the child: weights_only admits no code."""
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError("it is not a dictionary of tensors")
    save_file({str(name): tensor.contiguous().clone() for name, tensor in tensors.items()}, destination)


if __name__ == "__main__":
    try:
        limit(memory_bytes=int(sys.argv[3]), processor_s=round(STALL_S))
        _convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as problem:
        sys.exit(exit_code(problem))
