"""The GPU as the tuner sees it, through torch: inputs of a shape, and medians of graphs of launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot.targets import TARGETS, Target

Shape = Mapping[str, int | str]
LAUNCHES = 20  # of one graph; a short kernel would else be timed with the gaps between launches
REPEATS = 15
SETS = 4  # of inputs, taken in turn, so that no rows stay in the cache
PAUSE = 0.1  # seconds before a measurement: what ran before would else decide the clock
SM_SCALE = 0.0625


class Device:
    """GPU number ``index``. Raises ``LookupError`` where torch, the GPU or its target is missing."""

    def __init__(self, index: int) -> None:
        try:
            import torch
        except ImportError:
            raise LookupError("found no torch; wanted it for inputs and timing; install the torch of this machine's driver") from None
        if index >= torch.cuda.device_count():
            raise LookupError(f"found {torch.cuda.device_count()} GPUs that torch can use; wanted number {index}; pass another --device")
        torch.cuda.set_device(index)
        properties = torch.cuda.get_device_properties(index)
        arch = properties.gcnArchName.split(":")[0] if torch.version.hip else f"sm{properties.major}{properties.minor}"
        if arch not in TARGETS:
            raise LookupError(f"found a GPU of {arch}; wanted one of {', '.join(TARGETS)}; pass another --device")
        self._torch = torch
        self._pools: dict[tuple[object, ...], list[Any]] = {}
        self.name: str = properties.name
        self.target: Target = TARGETS[arch]

    def inputs(self, shape: Shape) -> list[dict[str, Any]]:
        """Sets of arguments of an attention op."""
        tokens, heads, d = int(shape["T"]), int(shape["H"]), int(shape["D"])
        shared: dict[str, Any] = {
            "sm_scale": SM_SCALE,
            "out": self._torch.empty(tokens, heads, 512, dtype=self._torch.bfloat16, device="cuda"),
        }
        if shape["precision"] != "default":
            shared["precision"] = shape["precision"]
        pools = self._pool(shape)
        return [{"q": self._normal(shape, tokens, heads, d), "kv": kv, "indices": self._indices(shape), **shared} for kv in pools]

    def _normal(self, shape: Shape, *size: int) -> Any:
        name = f"float8_{self.target.fp8}" if shape["dtype"] == "fp8" else "bfloat16"
        return (self._torch.randn(*size, device="cuda") * 0.25).to(getattr(self._torch, name))

    def _pool(self, shape: Shape) -> list[Any]:
        key = shape["s_kv"], shape["D"], shape["dtype"]
        if key not in self._pools:
            self._pools = {key: [self._normal(shape, int(shape["s_kv"]), int(shape["D"])) for _ in range(SETS)]}
        return self._pools[key]

    def _indices(self, shape: Shape) -> Any:
        torch, tokens, s_kv = self._torch, int(shape["T"]), int(shape["s_kv"])
        parts = [torch.rand(min(256, tokens - t), s_kv, device="cuda").topk(int(shape["topk"]), 1).indices for t in range(0, tokens, 256)]
        return torch.cat(parts).int()

    def medians_us(self, calls: Mapping[str, Sequence[Callable[[], object]]]) -> dict[str, float]:
        """Median microseconds of one launch of each entry, whose calls are taken in turn; the entries take turns too."""
        cuda = self._torch.cuda
        graphs = {}
        for name, choices in calls.items():
            choices[0]()  # verifies and loads, which no capture may
            cuda.synchronize()
            graphs[name] = cuda.CUDAGraph()
            with cuda.graph(graphs[name]):
                for i in range(LAUNCHES):
                    choices[i % len(choices)]()
            graphs[name].replay()
        cuda.synchronize()
        time.sleep(PAUSE)
        events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
        for _ in range(REPEATS):
            for name, graph in graphs.items():
                start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                events[name].append((start, end))
        cuda.synchronize()
        return {name: statistics.median(a.elapsed_time(b) * 1e3 / LAUNCHES for a, b in pairs) for name, pairs in events.items()}
