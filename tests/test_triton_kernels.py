"""The Triton kernels agree with their references, through Triton's interpreter: the cases are in interpreter_*.py.

They run in a process of their own, because triton decides at its import whether functions are interpreted.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")
HERE = Path(__file__).parent


@pytest.mark.parametrize("cases", ["interpreter_cases.py", "interpreter_decode.py", "interpreter_kpool.py"])
def test_kernels_agree_with_their_references(cases):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / cases)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent)))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
