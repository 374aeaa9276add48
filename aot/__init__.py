"""Build-time half of dsa-kernels: declarations in, packs out. Never imported by the runtime."""
