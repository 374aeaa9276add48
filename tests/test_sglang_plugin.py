"""The sglang plugin against a made-up sglang: what is replaced, what is said, and what is refused."""

from __future__ import annotations

import re

import pytest

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")

from dsa_kernels import _packs  # noqa: E402
from dsa_kernels.integrations import sglang_plugin  # noqa: E402
from dsa_kernels.integrations.sglang_plugin import REPORTED, TARGETS, VARIABLE  # noqa: E402
from tests import sglang_fake  # noqa: E402
from tests.sglang_fake import Server  # noqa: E402

NAMES = [target.name for target in TARGETS]


@pytest.fixture
def fake(tmp_path):
    return sglang_fake.write(tmp_path)


def test_everything_is_replaced_in_the_order_of_the_table(fake):
    server = Server(fake)
    assert server.code == 0 and server.replaced == NAMES
    assert server.said.splitlines() == [
        f"dsa_kernels {dsa.__version__} replaces in sglang 9.9:",
        *(f"  {target.path}" for target in TARGETS),
    ]


def test_it_is_said_once(fake):
    """By the first process alone, whose children inherit the mark."""
    children = sglang_fake.LOAD + f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {sglang_fake.LOAD!r}], check=True)\n"
    server = Server(fake, children)
    assert server.replaced == NAMES * 2
    assert server.said.count("replaces in sglang") == 1
    assert not Server(fake, **{REPORTED: "1"}).said


@pytest.mark.parametrize(("listed", "wanted"), [("dsa_kernels", NAMES), ("other,dsa_kernels", NAMES), ("other", [])])
def test_sglang_plugins_restricts_it(fake, listed, wanted):
    server = Server(fake, SGLANG_PLUGINS=listed)
    assert server.code == 0 and server.replaced == wanted and bool(server.said) == bool(wanted)


def test_some_functions_by_name(fake):
    server = Server(fake, **{VARIABLE: "triton_sparse_mla_fwd, tilelang_sparse_fwd"})
    assert server.code == 0 and server.replaced == ["tilelang_sparse_fwd", "triton_sparse_mla_fwd"]


OTHER = "(q, kv, indices, sm_scale, d_v=512, window=None)"
MISMATCH = (
    r"found functions of sglang 9\.9 with other signatures than dsa-kernels .* was written for:\n"
    r"  found sglang\.kernels\.ops\.attention\.dsa\.tilelang_kernel\.tilelang_sparse_fwd"
    + re.escape(OTHER)
    + r"; wanted tilelang_sparse_fwd\(q, kv, indices, sm_scale, d_v=512\)\n"
    r"nothing is replaced; install releases that go together, or name in DSA_KERNELS_SGLANG"
)


@pytest.fixture
def changed(tmp_path):
    return sglang_fake.write(tmp_path, {"tilelang_sparse_fwd": OTHER})


def test_another_signature_is_refused_with_both(changed):
    server = Server(changed)
    assert server.code == 0 and server.replaced == []  # sglang logs what plugins raise
    assert re.search("IntegrationError: " + MISMATCH, server.said) and "replaces in sglang" not in server.said


def test_and_ends_the_process_where_functions_were_named(changed):
    server = Server(changed, **{VARIABLE: "tilelang_sparse_fwd"})
    assert server.code == 1 and re.search("dsa_kernels: " + MISMATCH, server.said)
    assert Server(changed, **{VARIABLE: "flash_mla_sparse_fwd"}).replaced == ["flash_mla_sparse_fwd"]


@pytest.mark.parametrize(
    "other",
    [
        "(q, kv, indices, sm_scale, d_v)",
        "(q, kv, indices, sm_scale, d_v=256)",
        "(q, kv, indices, scale, d_v=512)",
        "(q, kv, indices, *, sm_scale, d_v=512)",
        "(**kwargs)",
    ],
)
def test_what_counts_as_another_signature(tmp_path, other):
    assert Server(sglang_fake.write(tmp_path, {"tilelang_sparse_fwd": other})).replaced == []


def test_annotations_do_not(tmp_path):
    other = "(q: 'Tensor', kv, indices, sm_scale: float, d_v: int = 512) -> 'Tensor'"
    assert Server(sglang_fake.write(tmp_path, {"tilelang_sparse_fwd": other})).replaced == NAMES


@pytest.fixture
def older(tmp_path):
    return sglang_fake.write(tmp_path, without=("metadata", "gather_cast_kv_fp8_pad_paged"))


ABSENT = ("gather_cast_kv_fp8_pad_paged", "q8kv8_topk_length_from_indices")


def test_absent_functions_are_reported(older):
    server = Server(older)
    assert server.code == 0 and server.replaced == [name for name in NAMES if name not in ABSENT]
    assert re.search(r"absent: gather_cast_kv_fp8_pad_paged \(since 0\.5\.22\): AttributeError: module .* has no attribute", server.said)
    assert "absent: q8kv8_topk_length_from_indices (since 0.5.23): ModuleNotFoundError: No module named" in server.said


@pytest.mark.parametrize("absent", ABSENT)
def test_and_refused_where_they_were_named(older, absent):
    server = Server(older, **{VARIABLE: f"tilelang_sparse_fwd,{absent}"})
    assert server.code == 1 and server.replaced == []
    assert re.search(rf"dsa_kernels: found not every function in sglang 9\.9.*\n  absent: {absent} .*\nnothing is replaced", server.said)


def test_nothing_to_replace_is_refused(tmp_path):
    server = Server(sglang_fake.write(tmp_path, without=tuple(NAMES)))
    assert server.code == 0 and "IntegrationError: found not every function" in server.said and "replaces" not in server.said


def test_a_name_that_is_not_in_the_table(fake):
    server = Server(fake, **{VARIABLE: "flash_mla"})
    assert server.code == 1 and re.search(rf"found flash_mla in {VARIABLE}; wanted names among flash_mla_sparse_fwd, ", server.said)


def test_no_kernels(fake):
    server = Server(fake, packs=False)
    assert server.code == 0 and server.replaced == [] and re.search(r"NoPack: found no pack of kernels under", server.said)
    assert Server(fake, packs=False, **{VARIABLE: "tilelang_sparse_fwd"}).code == 1


def test_no_kernels_for_the_devices_here(monkeypatch):
    monkeypatch.setattr(dsa, "info", lambda: {"packs": [{"target": "sm90"}]}, raising=False)
    for devices, fits in (({"sm90"}, True), ({"sm90", "sm120"}, True), (set(), True), ({"sm120"}, False)):
        monkeypatch.setattr(_packs, "_device_names", lambda devices=devices: devices)
        if fits:
            sglang_plugin._check_packs()
        else:
            with pytest.raises(dsa.NoPack, match="sm120"):
                sglang_plugin._check_packs()


COMMAND = "from dsa_kernels.__main__ import main\nraise SystemExit(main(['integrations', 'sglang']))"


def command(folder):
    """Exit code, lines of words, and what was said of errors."""
    server = Server(folder, COMMAND.replace("raise", "import sys; sys.stdout.write('\\n'); raise"), packs=False)
    return server.code, server.replaced, server.said


def test_the_command_needs_neither_packs_nor_torch(fake):
    code, words, said = command(fake)
    assert code == 0 and not said and words[:2] == ["sglang", "9.9"]
    for target in TARGETS:
        row = words.index(target.path)
        assert words[row + 1 : row + 4] == [target.since, "present", f"dsa_kernels.integrations.sglang.{target.name}"]
    blocked = "import sys; sys.modules['torch'] = None\n" + COMMAND
    assert Server(fake, blocked, packs=False).code == 0


def test_the_command_says_what_is_absent_and_what_differs(tmp_path):
    folder = sglang_fake.write(tmp_path, {"tilelang_sparse_fwd": OTHER}, ("metadata",))
    code, words, said = command(folder)
    assert code == 1 and words.count("present") == len(TARGETS) - 2 and words.count("absent") == 1 and words.count("mismatch") == 1
    assert re.search("IntegrationError: " + MISMATCH, said)


def test_the_command_without_sglang(tmp_path):
    code, words, _ = command(tmp_path)
    assert code == 0 and words[:4] == ["sglang", "is", "not", "installed"] and words.count("absent") == len(TARGETS)
