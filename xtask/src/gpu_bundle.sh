#!/bin/sh
# Tests Trike's kernels on this machine's GPU, then times them: ./run.sh [folder for the records]
# Needs a driver; for CUDA also NVRTC, from a toolkit or any Python package.
# TRIKE_RUNTIMES selects runtimes (cuda, hip, vulkan; default: those with a driver), TRIKE_BENCH adds options for
# `trike-gpu-test bench` (--filter m=1).
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/records}
mkdir -p "$out"

# Runtimes with an installed driver. Vulkan always: its error message names what is missing.
driver() { ldconfig -p 2>/dev/null | grep -q "$1" || [ -e "/opt/rocm/lib/$1" ] || [ -e "/usr/lib/wsl/lib/$1" ]; }
if [ -z "${TRIKE_RUNTIMES:-}" ]; then
    TRIKE_RUNTIMES=vulkan
    driver libamdhip64.so && TRIKE_RUNTIMES="hip $TRIKE_RUNTIMES"
    driver libcuda.so.1 && TRIKE_RUNTIMES="cuda $TRIKE_RUNTIMES"
fi
echo "runtimes: $TRIKE_RUNTIMES"

# NVRTC: on the loader path, in a toolkit, or in Python packages; the search is limited to 30 seconds.
if ! ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so'; then
    lib=$(timeout 30 find /usr/local/cuda*/lib64 /usr/lib /usr/local/lib /opt /root /home -xdev \
        -name 'libnvrtc.so.1[23]' -print -quit 2>/dev/null)
    if [ -n "$lib" ]; then
        LD_LIBRARY_PATH=$(dirname "$lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export LD_LIBRARY_PATH
    elif driver libcuda.so.1; then
        echo "NVRTC was not found: CUDA will fail, HIP and Vulkan do not need it." >&2
    fi
fi
# Headers: from a toolkit, or from the bundle, unpacked on first use.
if [ -z "${CUDA_PATH:-}" ]; then
    if [ -f /usr/local/cuda/include/cuda_fp16.h ]; then CUDA_PATH=/usr/local/cuda; else CUDA_PATH=$here/cuda; fi
    [ -d "$CUDA_PATH/include" ] || tar -xzf "$here/cuda.tar.gz" -C "$here"
    export CUDA_PATH
fi

status=0
{
    date -u '+%Y-%m-%dT%H:%M:%SZ'
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem --format=csv 2>/dev/null
    echo "CUDA_PATH=$CUDA_PATH LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
} >"$out/machine.txt"
for runtime in $TRIKE_RUNTIMES; do
    echo "== suites on $runtime"
    "$here/trike-gpu-test" run --runtime "$runtime" >"$out/suites-$runtime.txt" 2>&1 || status=1
    tail -n 1 "$out/suites-$runtime.txt"
    echo "== benchmarks on $runtime"
    "$here/trike-gpu-test" bench --device "$runtime" --output "$out/bench-$runtime.json" ${TRIKE_BENCH:-} >"$out/bench-$runtime.txt" 2>&1 || status=1
    tail -n 1 "$out/bench-$runtime.txt"
done
exit $status
