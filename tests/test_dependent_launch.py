"""A kernel that waits for those before it is launched while they run, where the driver can; no other kernel is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot.check import CheckError, check_wait
from tests import cabi
from tests.cabi import Runtime, Standin, candidate, launch, ptr, tensor, tensor_param
from tests.cabi_ops import refused

SERIALIZATION = "attribute6=1,"


def pack(folder: Path) -> Path:
    def made(name: str, t: int, **more: object) -> dict[str, object]:
        return candidate(name, f"T == {t}", launch(name, [ptr("x")], ["T", "1", "1"], **more))

    several = candidate("both", "T == 3", launch("first", [ptr("x")]), launch("second", [ptr("x")], dependent=True))
    all_of_them = [made("plain", 1), made("waits", 2, dependent=True), several, made("cluster", 4, dependent=True, cluster=[2, 1, 1])]
    return cabi.write_pack(folder / "sm90", "sm90", [cabi.op("o", [tensor_param("x", "u8", "T", align=1)], all_of_them)])


def run(folder: Path, cuda: Standin) -> list[str]:
    with Runtime([pack(folder)], cuda=cuda.path) as runtime:
        for t in (1, 2, 3, 4):
            runtime.op("o").launch(tensor("u8", [t]))
    return cuda.calls("cuLaunchKernel", "cuLaunchKernelEx")


def test_who_is_launched_early(tmp_path: Path, cuda: Standin) -> None:
    calls = run(tmp_path, cuda)
    assert {x.split()[1]: SERIALIZATION in x for x in calls} == {
        "plain": False, "waits": True, "first": False, "second": True, "cluster": True,
    }  # fmt: skip
    assert "attribute4=2,1,1" in calls[-1]


def test_explain_says_so(tmp_path: Path, cuda: Standin) -> None:
    with Runtime([pack(tmp_path)], cuda=cuda.path) as runtime:
        said = [runtime.op("o").explain(tensor("u8", [t])) for t in (1, 2)]
    assert ["may start before the kernel before it ends" in x for x in said] == [False, True]


def test_drivers_that_cannot_capture_it(tmp_path: Path, cuda: Standin) -> None:
    cuda.lib.standin_reset(b"9.0", 12020, 132)
    assert not any(SERIALIZATION in x for x in run(tmp_path, cuda))


def test_a_manifest_must_say(tmp_path: Path) -> None:
    file = pack(tmp_path) / "manifest.json"
    text = json.loads(file.read_text())
    del text["ops"][0]["kernels"][0]["dependent"]
    file.write_text(json.dumps(text))
    with refused("PACK_SCHEMA", "dependent"):
        Runtime([file.parent])


WAIT = "        /*0010*/                   ACQBULK ;\n"
LOAD = "        /*0020*/                   LDG.E.CONSTANT R2, desc[UR4][R2.64] ;\n"


def test_what_stands_before_the_wait() -> None:
    check_wait("        /*0000*/                   LDS R1, [R2] ;\n" + WAIT + LOAD)
    for first in ("LDG.E.CONSTANT R2, desc[UR4][R2.64]", "UTMALDG.3D [UR8], [UR4], desc[UR6]", "UBLKPF [UR4], UR8", "CCTL.PF2 [R2]"):
        with pytest.raises(CheckError, match=f"found {first.split('.')[0].split()[0]} before the kernel waits"):
            check_wait(f"        /*0000*/                   {first} ;\n" + WAIT)
    for wrong in (LOAD, WAIT.replace("ACQBULK", "@!P0 ACQBULK")):
        with pytest.raises(CheckError, match="every thread"):
            check_wait(wrong)
