"""The program names OpenBLAS's kernels where OpenBLAS mistakes the processor, and only there."""

import subprocess
import sys
from pathlib import Path

import pytest

from cachesim.cli.blas import tell_openblas

AVX512 = "fpu avx avx2 avx512f avx512dq avx512cd avx512bw avx512vl"
ZEN_5 = f"""processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC 9555
flags\t\t: {AVX512} avx512_bf16

processor\t: 1
vendor_id\t: AuthenticAMD
"""


def chosen(folder: Path, text: str | None, **environment: str) -> dict[str, str]:
    cpuinfo = folder / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    tell_openblas(environment, cpuinfo)
    return environment


def test_zen_5_gets_the_kernels_it_has(tmp_path: Path) -> None:
    assert {"OPENBLAS_CORETYPE": "SkylakeX"} == chosen(tmp_path, ZEN_5)


def test_what_the_user_chose_stays(tmp_path: Path) -> None:
    assert {"OPENBLAS_CORETYPE": "Haswell"} == chosen(tmp_path, ZEN_5, OPENBLAS_CORETYPE="Haswell")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "no list at all",
        ZEN_5.replace(" 26", " 25"),
        ZEN_5.replace("AuthenticAMD", "GenuineIntel"),
        ZEN_5.replace("avx512dq ", ""),
        ZEN_5.replace("flags", "features"),
    ],
    ids=["no file", "empty", "prose", "zen 4", "intel", "a part of avx-512", "no flags"],
)
def test_every_other_processor_is_left_to_openblas(tmp_path: Path, text: str | None) -> None:
    assert {} == chosen(tmp_path, text)


def test_the_program_chooses_before_numpy_is_loaded() -> None:
    program = "import sys, cachesim.cli.main, cachesim.cli.blas; print('numpy' in sys.modules)"

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "False\n" == said.stdout
