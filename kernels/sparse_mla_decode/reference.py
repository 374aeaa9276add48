"""Oracle for sparse MLA decode: the one of sparse_mla_prefill, which computes the same."""

import runpy
from pathlib import Path

reference = runpy.run_path(str(Path(__file__).parents[1] / "sparse_mla_prefill/reference.py"))["reference"]
