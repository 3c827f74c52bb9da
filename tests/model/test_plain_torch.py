"""The model is plain PyTorch: any device, any type of numbers, autograd through everything."""

import ast
from pathlib import Path

import pytest

import curlicue.model

SOURCES = sorted(Path(curlicue.model.__file__).parent.glob("*.py"))


def test_there_are_sources_to_look_at():
    assert {"elbo.py", "mixture.py", "pairs.py", "networks.py", "inference.py"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_of_the_model_knows_numpy_or_numba(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(aliases):
                names |= {alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom(module=module):
                names.add((module or "").partition(".")[0])
            case ast.Attribute(attr=attribute):
                names.add(attribute)
    assert not names & {"numpy", "numba", "from_numpy", "__array__"}
    assert not any(word in path.read_text() for word in (".numpy(", "import numpy", "import numba", "from_numpy"))
