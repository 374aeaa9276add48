"""Compilers: source + constants + target -> code object. One module per language, each with ``build`` and ``toolchain``."""
