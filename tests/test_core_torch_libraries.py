"""torch's shared libraries are loaded without keeping other threads waiting."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from core import torch_libraries
from core.torch_libraries import load_torch_libraries

LOADED_BESIDE_A_THREAD = """
import sys, threading
from core.torch_libraries import load_torch_libraries

turns, is_over = 0, threading.Event()

def count():
    global turns
    while not is_over.wait(0.001):
        turns += 1

# Nobody takes the lock from a thread that has it: the counter goes on only where it is given back.
sys.setswitchinterval(60)
counter = threading.Thread(target=count)
counter.start()
before = turns
is_loaded = load_torch_libraries()
after = turns
is_over.set()
counter.join()
import torch
print(is_loaded, after > before, float(torch.ones(2).sum()), load_torch_libraries())
"""


@pytest.mark.skipif(sys.platform not in {"linux", "darwin"}, reason="the import loads them there")
def test_another_thread_goes_on_while_they_are_loaded_and_torch_works_afterwards():
    done = subprocess.run([sys.executable, "-c", LOADED_BESIDE_A_THREAD], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "True", "2.0", "False"], done.stderr


@pytest.mark.skipif(sys.platform not in {"linux", "darwin"}, reason="the import loads them there")
@pytest.mark.parametrize("package", ["torch", "scipy"])
def test_the_libraries_that_are_read_ahead_are_those_that_are_installed(package):
    packages = Path(find_spec("torch").origin).parents[1]
    found = [path.relative_to(packages) for path in torch_libraries._files_ahead(packages) if packages in path.parents]
    mine = [path for path in found if path.parts[0].startswith(package)]
    assert any((packages / path).stat().st_size > 5_000_000 for path in mine)


def test_of_the_systems_libraries_those_of_pythons_own_folder_come_first(tmp_path, monkeypatch):
    for name in ("libcrypto.so.3", "libssl.so.3", "libother.so.1"):
        (tmp_path / name).touch()
    monkeypatch.setattr(torch_libraries.sysconfig, "get_config_var", lambda name: str(tmp_path) * (name == "LIBDIR"))
    found = list(torch_libraries._files_ahead(tmp_path / "packages"))
    assert sorted(found) == [tmp_path / "libcrypto.so.3", tmp_path / "libssl.so.3"]


def test_libraries_that_can_not_be_found_are_left_to_the_import_to_explain(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(torch_libraries.importlib.util, "find_spec", lambda _name: None)
    assert not load_torch_libraries()


def test_other_systems_leave_it_to_the_import(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not load_torch_libraries()
