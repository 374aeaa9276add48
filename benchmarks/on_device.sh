#!/usr/bin/env bash
# Everything that needs a GPU, from the wheels alone: tests, the C++ host, cold start, launch cost, kernel rates, sanitizers.
#
#   benchmarks/on_device.sh DIST RESULTS [PART...]      DIST holds the runtime wheel of this Python and the arch wheel of this GPU
#
# Compilers are put out of reach: the wheels are installed into a folder of their own, `import triton` and `import tilelang` fail,
# and PATH has no nvcc. Each part is timed and may fail without stopping the others; the summary says which did.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
dist=$(realpath "$1"); mkdir -p "$2"; results=$(realpath "$2"); shift 2
parts=${*:-tests host embedded coldstart launch rates memcheck racecheck synccheck}
arch=${DSAK_ARCH:-sm90}
python=$(command -v python3)

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
site=$work/site; mkdir -p "$site" "$work/blocked" "$work/bin"
"$python" -m pip install -q --no-index --find-links "$dist" --target "$site" "dsa-kernels[$arch]" || exit 1
for compiler in triton tilelang; do echo "raise ImportError('blocked: a serving host has no $compiler')" > "$work/blocked/$compiler.py"; done
export PYTHONPATH=$work/blocked:$site PYTHONDONTWRITEBYTECODE=1
cmake=$(command -v cmake) cxx=$(command -v g++ || command -v c++)

status=0
part() {  # name, seconds, command...
  local name=$1 limit=$2 start=$SECONDS; shift 2
  case " $parts " in *" $name "*) ;; *) return;; esac
  env -u HOME PATH=/usr/sbin:/usr/bin:/sbin:/bin timeout "$limit" "$@" > "$results/$name.txt" 2>&1
  local code=$?
  [ $code = 0 ] || status=1
  echo "== $name: exit $code, $((SECONDS - start)) s"; tail -n "${LINES_SHOWN:-25}" "$results/$name.txt"
}

cd "$work"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | tee "$results/machine.txt"
"$python" -m dsa_kernels verify || status=1
part tests 420 "$python" -m pytest -q -p no:cacheprovider -m gpu -c "$here/pyproject.toml" --rootdir "$here" "$here"/tests/test_gpu_*.py "$here"/tests/test_torch_gpu.py
if [[ " $parts " == *" host "* ]]; then
  prefix=$("$python" -m dsa_kernels cmake-dir) && "$cmake" -S "$here/examples/cpp_host" -B "$work/host" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" -DDSA_KERNELS_PACKS="$site/dsa_kernels_packs" > "$results/host_build.txt" 2>&1 \
    && "$cmake" --build "$work/host" >> "$results/host_build.txt" 2>&1 || { tail -5 "$results/host_build.txt"; status=1; }
fi
part host 60 "$work/host/cpp_host" "$site/dsa_kernels_packs/$arch"
part embedded 60 "$work/host/cpp_host"
part coldstart 200 "$python" "$here/benchmarks/coldstart.py" --json "$results/coldstart.json"
part launch 200 "$python" "$here/benchmarks/launch.py" --json "$results/launch.json"
part rates 400 "$python" "$here/benchmarks/rates.py" --json "$results/rates.json"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null | head -1)
for tool in memcheck racecheck synccheck; do
  [ -n "$sanitizer" ] && part "$tool" 300 "$sanitizer" --tool $tool --error-exitcode 9 "$python" "$here/benchmarks/sanitize.py" --tokens "${SANITIZE_TOKENS:-150}"
done
exit $status
