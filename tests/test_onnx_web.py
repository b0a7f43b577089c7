"""An exported file gives the same logits where browsers run it: onnxruntime-web, WebAssembly, here in Node."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qkgcc.network.registry import PRETRAINED

TOOL = Path(__file__).parents[1] / "tools" / "onnx_web"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no Node here")
@pytest.mark.skipif(
    not (TOOL / "node_modules" / "onnxruntime-web").is_dir(),
    reason="onnxruntime-web is not there: npm install --prefix tools/onnx_web",
)
@pytest.mark.parametrize("network", PRETRAINED)
def test_logits_in_webassembly_are_those_of_the_package(network: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, TOOL / "frames.py", tmp_path, "--network", network], check=True)
    done = subprocess.run([str(NODE), TOOL / "check.mjs", tmp_path], check=True, capture_output=True, text=True)
    said = json.loads(done.stdout)
    assert said["shape"] == [16, 49]
    assert said["largest"] > 5
    assert said["difference"] <= 1e-4
