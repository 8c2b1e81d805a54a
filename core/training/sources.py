"""Where the training text comes from: the standard library and pinned, permissively licensed wheels.

Files under the GPL or LGPL are not used, nor MPL ones (hypothesis, tqdm), nor anything vendored inside a package.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One distribution. `max_bytes` bounds its share of the corpus, `repeat` is how often its files are seen."""

    name: str
    version: str
    licence: str
    max_bytes: int = 4_000_000
    repeat: int = 1


STDLIB = Source("python", "3.11", "PSF-2.0", max_bytes=20_000_000, repeat=2)
STDLIB_TESTS = Source("python-tests", "3.11", "PSF-2.0", max_bytes=4_000_000)

WHEELS: tuple[Source, ...] = (
    Source("accelerate", "1.15.0", "Apache-2.0"),
    Source("aiohttp", "3.13.1", "Apache-2.0 AND MIT"),
    Source("anyio", "4.16.0", "MIT"),
    Source("attrs", "25.4.0", "MIT"),
    Source("black", "25.9.0", "MIT"),
    Source("bokeh", "3.8.0", "BSD-3-Clause", max_bytes=2_000_000),
    Source("click", "8.5.1", "BSD-3-Clause"),
    Source("dask", "2025.10.0", "BSD-3-Clause", max_bytes=3_000_000),
    Source("django", "5.2.8", "BSD-3-Clause", max_bytes=8_000_000),
    Source("fastapi", "0.120.0", "MIT"),
    Source("flask", "3.1.2", "BSD-3-Clause"),
    Source("fsspec", "2026.9.0", "BSD-3-Clause"),
    Source("h11", "0.16.0", "MIT"),
    Source("huggingface-hub", "2.4.0", "Apache-2.0"),
    Source("jedi", "0.19.2", "MIT"),
    Source("Jinja2", "3.1.6", "BSD-3-Clause"),
    Source("markdown-it-py", "4.3.0", "MIT"),
    Source("matplotlib", "3.10.7", "PSF-based (matplotlib)", max_bytes=5_000_000),
    Source("more-itertools", "10.8.0", "MIT"),
    Source("mpmath", "1.3.0", "BSD-3-Clause"),
    Source("mypy", "1.18.2", "MIT", max_bytes=3_000_000),
    Source("networkx", "3.6.1", "BSD-3-Clause"),
    Source("nltk", "3.9.2", "Apache-2.0", max_bytes=2_000_000),
    Source("numpy", "2.4.6", "BSD-3-Clause", max_bytes=5_000_000),
    Source("packaging", "26.3", "Apache-2.0 OR BSD-2-Clause"),
    Source("pandas", "2.3.3", "BSD-3-Clause", max_bytes=6_000_000),
    Source("platformdirs", "4.14.7", "MIT"),
    Source("psutil", "7.2.2", "BSD-3-Clause"),
    Source("pydantic", "2.14.3", "MIT"),
    Source("Pygments", "2.21.0", "BSD-2-Clause", max_bytes=1_500_000),
    Source("pyqtgraph", "0.14.0", "MIT", max_bytes=1_500_000),
    Source("pytest", "8.4.2", "MIT"),
    Source("PyYAML", "6.0.3", "MIT"),
    Source("requests", "2.32.5", "Apache-2.0"),
    Source("rich", "15.0.0", "MIT"),
    Source("safetensors", "0.8.0", "Apache-2.0"),
    Source("scikit-image", "0.25.2", "BSD-3-Clause", max_bytes=3_000_000),
    Source("scikit-learn", "1.7.2", "BSD-3-Clause", max_bytes=6_000_000),
    Source("scipy", "1.15.3", "BSD-3-Clause", max_bytes=6_000_000),
    Source("setuptools", "84.2.1", "MIT", max_bytes=2_000_000),
    Source("sqlalchemy", "2.0.44", "MIT", max_bytes=5_000_000),
    Source("statsmodels", "0.14.5", "BSD-3-Clause", max_bytes=3_000_000),
    Source("sympy", "1.14.0", "BSD-3-Clause", max_bytes=6_000_000),
    Source("superqt", "0.9.0", "BSD-3-Clause", max_bytes=500_000),
    Source("textual", "6.4.0", "MIT"),
    Source("torch", "2.13.0", "BSD-3-Clause", max_bytes=6_000_000),
    Source("tornado", "6.5.2", "Apache-2.0"),
    Source("transformers", "5.23.0", "Apache-2.0", max_bytes=5_000_000),
    Source("trio", "0.31.0", "MIT OR Apache-2.0"),
    Source("Twisted", "25.5.0", "MIT", max_bytes=4_000_000),
    Source("typer", "0.29.2", "MIT"),
    Source("werkzeug", "3.1.3", "BSD-3-Clause"),
    Source("xarray", "2025.10.1", "Apache-2.0", max_bytes=3_000_000),
)
