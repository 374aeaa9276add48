"""The TileLang kernel for SM90, include/tile_sm90.py: one of a token's splits, which stores its partial result; combine.py weighs them."""

from aot.registry import sibling

sparse_mla_sm90 = sibling(__file__, "../include/tile_sm90").sparse_mla_sm90
