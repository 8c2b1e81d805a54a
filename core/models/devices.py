"""Which device and precision a model runs with."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import platform
import subprocess
import sys
from pathlib import Path, PurePosixPath

import psutil
import torch

from core.errors import DeviceError, OutOfMemoryError, SettingsError, ran_out_of_memory
from core.settings import Device, DType

# Two threads that create their first tensors at once would deadlock, so torch is initialised here.
torch.tensor(0.0)
with torch.device("meta"):
    torch.nn.Linear(1, 1, dtype=torch.tensor([0.0]).dtype)


def resolve_device(device: str) -> torch.device:
    """The device for a setting; `auto` is CUDA, else MPS, else the CPU.

    Raises:
        SettingsError: an unknown name.
        DeviceError: a device that this machine, or this build of torch, does not have.
    """
    try:
        wanted = Device(device)
    except ValueError:
        raise SettingsError(f"There is no device {device!r}. Choose one of: {', '.join(Device)}, cuda:1.") from None
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if wanted is Device.AUTO:
        wanted = Device.CUDA if has_cuda else Device.MPS if has_mps else Device.CPU
    kind, _, index = wanted.value.partition(":")
    if (kind == Device.CUDA and not has_cuda) or (kind == Device.MPS and not has_mps):
        raise DeviceError(f"This machine offers no {kind.upper()} device to torch. Choose auto or cpu.")
    if kind == Device.CUDA:
        # cuDNN's attention, which torch prefers on an H100, builds a plan for each new length of a text.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if index and int(index) >= (count := torch.cuda.device_count()):
        raise DeviceError(f"This machine has no {wanted}; its last GPU is cuda:{count - 1}. Choose auto, or another.")
    return torch.device(wanted.value)


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The precision for a setting; `auto` is bfloat16 on CUDA (float16 where it lacks that), float16 on MPS,
    float32 on the CPU.

    Raises:
        SettingsError: an unknown name.
    """
    try:
        wanted = DType(dtype)
    except ValueError:
        raise SettingsError(f"There is no precision {dtype!r}. Choose one of: {', '.join(DType)}.") from None
    if wanted is not DType.AUTO:
        return getattr(torch, wanted.value)
    if device.type == "cuda":
        with torch.cuda.device(device):  # Otherwise the first GPU answers.
            is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if is_native else torch.float16
    return torch.float16 if device.type == "mps" else torch.float32


def free_memory(device: torch.device) -> int:
    """Free bytes on a device, including what torch has reserved but does not use."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    available = available_memory()
    if device.type == "mps":
        # It shares the system memory, and may use part of it.
        return min(available, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return available


_GROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_GROUP_FILES = (("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
"""A group's limit and what it has taken, of both versions of Linux's control groups; the older has a folder for it."""
_LIBRARY_BYTES, _FORWARD_BYTES = 1400 * 2**20, 160 * 2**20
"""Addresses that Python, torch and others take by their first forward, and those of a run; without, they may hang."""


def available_memory(groups: Path = _GROUPS, membership: Path = _MEMBERSHIP, *, with_swap: bool = False) -> int:
    """Bytes of memory that this process can still take: the machine's, its control groups', and its own limit's.

    Args:
        groups: where the control groups are; a container sees its own as the root.
        membership: the file that names the groups of this process, such as that of a service with a limit.
        with_swap: whether the swap space counts.
    """
    rooms = [int(psutil.virtual_memory().available) + (int(psutil.swap_memory().free) if with_swap else 0)]
    places = {PurePosixPath("/")}
    with contextlib.suppress(OSError, ValueError):
        for line in membership.read_text("utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                places |= {PurePosixPath(path), *PurePosixPath(path).parents}
    for place in places:
        for kind, most, taken in _GROUP_FILES:
            group = groups / kind / place.relative_to("/")
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit.
                room = int((group / most).read_text("ascii")) - int((group / taken).read_text("ascii"))
                rooms.append(room + _cached_bytes(group / "memory.stat"))
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # Not on Windows.

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            taken_bytes = psutil.Process().memory_info().vms
            rooms.append(limit - max(taken_bytes + _FORWARD_BYTES, _LIBRARY_BYTES))
    return max(0, min(rooms))


def _cached_bytes(stat: Path) -> int:
    """Bytes of cached files that count towards a control group's memory, and are freed when memory is needed."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        found = {name: int(value) for name, value in map(str.split, stat.read_text("ascii").splitlines())}
    return sum(found.get(f"total_{name}", found.get(name, 0)) for name in ("active_file", "inactive_file"))


def release_memory() -> None:
    """Free whatever is no longer referenced."""
    if gc.isenabled():  # With a window, only the window's thread may collect garbage.
        gc.collect()
    trim_heap()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def trim_heap() -> None:
    """Return the allocator's unused memory to the system; takes about a millisecond."""
    if not sys.platform.startswith("linux"):
        return  # Windows can't even load CDLL(None).
    with contextlib.suppress(OSError, AttributeError):
        # glibc keeps freed small blocks, some 40 MB after a tokenizer; other systems have no such call.
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: our own, or any form that torch or a device uses."""
    return isinstance(error, torch.OutOfMemoryError | OutOfMemoryError) or ran_out_of_memory(error)


def device_name(device: torch.device) -> str:
    """The device's name for display."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{_processor_name()} GPU"
    return _processor_name()


@functools.cache
def _processor_name() -> str:
    if sys.platform == "darwin":  # Where platform.processor() is "arm" on every Apple chip.
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            if name := subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip():
                return name
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"
