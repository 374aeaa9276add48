"""dsa_kernels_embed links a pack into a program: one file deploys, and what is in it is checked as a folder is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import cabi
from tests.cabi import Standin

pytestmark = pytest.mark.skipif("DSAK_TEST_BUILD" in os.environ, reason="a given build may need flags that the host does not know")
PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(host CXX)
find_package(dsa_kernels 0.1 REQUIRED)
add_executable(host main.cpp)
target_link_libraries(host PRIVATE dsa_kernels::static)
dsa_kernels_embed(TARGET host ARCH sm90 PACKS "{packs}" {more})
"""
MAIN = r"""
#include <dsa_kernels_sm90.h>
#include <cstdio>
int main(int argc, char**) {
  const dsak_embedded_pack* embedded[] = {&dsa_kernels_sm90};
  dsak_file cut[8] = {};
  dsak_embedded_pack damaged = dsa_kernels_sm90;
  if (argc > 1) {  // the last object is one byte short
    for (size_t i = 0; i < damaged.num_files; ++i) cut[i] = damaged.files[i];
    --cut[damaged.num_files - 1].size;
    damaged.files = cut;
    embedded[0] = &damaged;
  }
  dsak_options options{};
  options.struct_size = sizeof options;
  options.embedded = embedded;
  options.num_embedded = 1;
  dsak_error error{};
  error.struct_size = sizeof error;
  dsak_runtime* runtime = nullptr;
  dsak_op *scale = nullptr, *split = nullptr;
  if (dsak_open(&options, &runtime, &error) != DSAK_OK || dsak_find(runtime, "scale", &scale, &error) != DSAK_OK ||
      dsak_preload(runtime, nullptr, 2, 0, &error) != DSAK_OK) {
    std::puts(error.message);
    return 1;
  }
  const bool has_split = dsak_find(runtime, "split", &split, &error) == DSAK_OK;
  std::printf("%zu files, %s\n", dsa_kernels_sm90.num_files, has_split ? "split" : error.message);
  dsak_close(runtime);
}
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("installed")
    subprocess.run(["cmake", "--install", cabi.build(), "--prefix", place], check=True, capture_output=True)
    return place


def configure(folder: Path, prefix: Path, packs: Path, more: str = "") -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(PROJECT.format(packs=packs, more=more.format(packs=packs)))
    (folder / "main.cpp").write_text(MAIN)
    command = ["cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_program_needs_no_pack(tmp_path: Path, prefix: Path, sm90: Path, cuda: Standin) -> None:
    env = os.environ | {"DSA_KERNELS_CUDA_LIBRARY": str(cuda.path)}
    programs = {}
    for name, more in (("whole", ""), ("one", "OPS scale")):
        done = configure(tmp_path / name, prefix, sm90.parent, more)
        assert done.returncode == 0, done.stderr
        subprocess.run(["cmake", "--build", tmp_path / name / "build"], check=True, capture_output=True)
        programs[name] = tmp_path / name / "build" / "host"
    shutil.rmtree(sm90)

    def run(name: str, *arguments: str) -> str:
        return subprocess.run([programs[name], *arguments], capture_output=True, text=True, env=env).stdout.strip()

    assert run("whole") == "5 files, split"
    assert run("one").startswith("3 files, found no op split, wanted one of: scale")
    assert "(in the program) sm90/objects/" in run("one", "damaged") and "found" in run("one", "damaged")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("OPS scale nope", "found no op nope in"),
        ("SOMETHING", "wanted TARGET app ARCH name"),
        ("ARCH gfx950", "found no"),
        ("OPS", "wanted TARGET app ARCH name"),
        (')\ndsa_kernels_embed(TARGET host ARCH sm90 PACKS "{packs}"', "found sm90 in host already"),
    ],
)
def test_a_wrong_request_stops_the_configuration(tmp_path: Path, prefix: Path, sm90: Path, more: str, message: str) -> None:
    done = configure(tmp_path / "wrong", prefix, sm90.parent, more)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
