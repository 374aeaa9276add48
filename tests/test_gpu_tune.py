"""The tuner on a GPU: a small shape is timed without a compiler, and every candidate that it times computes the same thing."""

import json
import re

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the tuner makes its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")
click_testing = pytest.importorskip("click.testing", reason="the tuner's command line is made with click")

from aot import tune, tuning  # noqa: E402
from aot.device import Device  # noqa: E402
from aot.trial import Trials, cut  # noqa: E402

SMALL = {"dtype": "fp8", "precision": "default", "s_kv": 4096, "topk": 1024, "D": 576, "H": 16, "T": 4}


@pytest.mark.parametrize("op", tune.SHAPES)
def test_every_trial_computes_what_the_default_does(tmp_path, op):
    device = Device(0)
    trials = Trials(op, [tune.pack_of(device.target, [])], tmp_path)
    inputs = device.inputs(SMALL)[0]
    accepted = trials.explain(inputs).accepted
    outputs = []
    for name in accepted:
        inputs["out"].fill_(float("nan"))
        trials.call(name, inputs)()
        outputs.append(inputs["out"].float())
    for name, out in zip(accepted, outputs, strict=True):
        assert (out - outputs[0]).norm() <= 0.05 * outputs[0].norm(), name
    torch.cuda.synchronize()
    trials.close()


def test_a_small_shape_is_timed_and_what_wins_is_written(tmp_path, monkeypatch):
    """From a pack in the reverse order of preference, whose default is the slow one."""
    target = Device(0).target
    if target.name != "sm90":
        pytest.skip("what is slow is known on sm90")
    op, folder = "sparse_mla_decode", tmp_path / "packs" / "sm90"
    cut(tune.pack_of(target, []), folder, op, lambda name: not tuning.is_tuned(name))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["ops"][0]["candidates"].reverse()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / op).mkdir()
    monkeypatch.setattr(tune, "KERNELS", tmp_path)

    given = [f"--shapes={axis}={SMALL[axis]}" for axis in ("s_kv", "topk", "D", "H", "T")]
    arguments = ["--op", op, "--packs", str(folder.parent), *given, "--write"]
    done = click_testing.CliRunner().invoke(tune.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (line,) = re.findall(r"^dtype=fp8 .*$", done.output, re.M)
    times = [float(us) for us in re.findall(r" (\d+\.\d+)(?:,|$)", line)]
    assert len(times) > 1 and times == sorted(times) and 1 < times[0] < 100, line
    ((entry,),) = tuning.read(tune.discover()[op], tmp_path / op / tuning.FILE).values()
    assert entry.first.startswith("low_d576_h") and entry.when.startswith("T == 4 and H == 16 and D == 576 and "), entry
    assert entry.measured["device"] == torch.cuda.get_device_name(0)
