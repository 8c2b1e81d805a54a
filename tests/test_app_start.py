"""The window is up before the engine is loaded, and never leans on what it should not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "scipy", "accelerate", "huggingface_hub")


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_and_building_the_window_imports_no_engine():
    code = f"""
import sys
from PySide6.QtWidgets import QApplication
from app.main_window import MainWindow
application = QApplication([])
window = MainWindow()
print([name for name in {HEAVY!r} if name in sys.modules])
window.close()
window.controller.join(5000)
"""
    assert run_python(code) == "[]"


def test_checking_a_pair_imports_no_engine_either():
    code = f"""
import sys
from app.tools.models.models import find_problem
find_problem("nowhere", "elsewhere")
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run_python(code) == "[]"
