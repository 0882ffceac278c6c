"""Devices: what is found, and that they compute what the processor does. Mesa's software driver serves as one where it is installed."""

import json
import os
import subprocess
import sys

import pytest

import trike

DRIVER = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"
PROGRAM = """
import json, sys, trike
found = trike.devices()
out = {"devices": [(d["name"], d["software"]) for d in found]}
model = trike.Model(sys.argv[1], device=sys.argv[2])
out["backend"] = model.info["backend"]
out["text"] = model.generate("Once upon a time", max_tokens=12, temperature=0.0)["text"]
print(json.dumps(out))
"""


#: What only a build with a GPU runtime has.
HAS_RUNTIME = hasattr(trike._trike, "_device_bind")
needs_driver = pytest.mark.skipif(
    not HAS_RUNTIME or not os.path.exists(DRIVER),
    reason="skipped: Mesa's software driver is not installed" if HAS_RUNTIME else "skipped: this build has no GPU runtime",
)


def program(path, device, **environment):
    # A process of its own: drivers are looked for once per process.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VK_", "TRIKE_", "NODEVICE_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), device],
        capture_output=True,
        encoding="utf-8",
        env={**kept, **environment},
        timeout=300,
    )
    assert done.returncode == 0 and "XDG_RUNTIME_DIR" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_driver_is_no_device(tiny, tiny_path):
    out = program(tiny_path, "auto", VK_ICD_FILENAMES="/nonexistent.json", VK_DRIVER_FILES="/nonexistent.json")
    # OpenGL is not used either.
    assert out["devices"] == [] and out["backend"] == tiny.info["backend"]
    assert out["text"] == tiny.generate("Once upon a time", max_tokens=12, temperature=0.0)["text"]


@needs_driver
def test_a_model_on_a_software_driver(tiny, tiny_path):
    out = program(tiny_path, "wgpu:0", VK_ICD_FILENAMES=DRIVER)
    assert ["wgpu:0", True] in out["devices"]
    assert "wgpu" in out["backend"] or "llvmpipe" in out["backend"]
    assert out["text"] == tiny.generate("Once upon a time", max_tokens=12, temperature=0.0)["text"]
    # It is named or not used: a processor is faster without it.
    assert program(tiny_path, "auto", VK_ICD_FILENAMES=DRIVER)["backend"] == tiny.info["backend"]


COMPAT = """
import sys, numpy as np
from trike import compat
rng = np.random.default_rng(1)
trits = rng.integers(-1, 2, (96, 130)).astype(np.float32)
packed, scales = compat.pack_ternary_weights(trits, rng.uniform(1, 2, 96).astype(np.float32))
x = rng.normal(size=(3, 130)).astype(np.float32)
a, b, c = rng.integers(-1, 2, (3, 1000)).astype(np.int8)
def all(device):
    return [compat.ternary_matmul(x, packed, scales, (96, 130), device), compat.vsa_bind(a, b, device), compat.vsa_unbind(a, b, device),
            compat.vsa_bundle([a, b, c], device)]
for one, other in zip(all("cpu"), all("wgpu:0")):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert one.dtype == other.dtype
compat.set_device("wgpu:0")
assert compat.get_device() == "wgpu:0"
np.testing.assert_array_equal(compat.vsa_bind(a, b), all("cpu")[1])
"""


@needs_driver
def test_compat_on_a_software_driver():
    environment = {**os.environ, "VK_ICD_FILENAMES": DRIVER}
    done = subprocess.run([sys.executable, "-c", COMPAT], capture_output=True, encoding="utf-8", env=environment, timeout=300)
    assert done.returncode == 0, done.stderr


def test_devices_that_are_not_there(tiny_path):
    with pytest.raises((ValueError, trike.ModelError), match="cuda:7|cuda"):
        trike.Model(tiny_path, device="cuda:7")
    with pytest.raises(ValueError, match="device"):
        trike.Model(tiny_path, device="toaster")
