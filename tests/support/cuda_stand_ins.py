"""Stand-ins for the CUDA libraries that a CUDA build of torch loads when it is imported, for machines without a GPU.

    python tests/support/cuda_stand_ins.py .../site-packages/torch/lib

Each is a library of the right name whose functions all return cudaErrorNoDevice. Torch then finds no GPU, as it would without
a driver, and computes on the CPU: gigabytes of libraries need not be fetched to test a version of it. Needs gcc, binutils.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SYSTEM = ("libc.so", "libm.so", "libdl", "librt", "libpthread", "libgcc", "libstdc", "ld-linux", "libutil")
CUDA = re.compile(r"(cu|__cuda|nccl|nvrtc|nvshmem|nvtx|nvJit)")
NO_DEVICE = 100


def tool(*command: str | Path) -> str:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def symbols(library: Path) -> list[tuple[str, str, bool]]:
    """(name, version, defined here) of every dynamic symbol."""
    rows = (line.split() for line in tool("readelf", "-W", "--dyn-syms", library).splitlines())
    named = ((row[7].partition("@"), row[6] != "UND") for row in rows if len(row) >= 8 and row[0].endswith(":"))
    return [(name, version.strip("@"), defined) for (name, _, version), defined in named]


def main(folder: Path) -> None:
    libraries = sorted(folder.glob("*.so*"))
    headers = {library: tool("objdump", "-p", library) for library in libraries}
    present = {library.name for library in libraries}
    needed = {name for text in headers.values() for name in re.findall(r"NEEDED\s+(\S+)", text)} - present
    needed = sorted(name for name in needed if not name.startswith(SYSTEM))
    if not needed:  # they are there already, or it is a build for CPUs
        return
    # Which library a version of symbols is asked of: mostly it has the name of the library.
    homes = {"": next(name for name in needed if name.startswith("libcudart"))}
    for text in headers.values():
        for block in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", text):
            homes |= {line.split()[-1]: block[0] for line in block[1].splitlines()}
    found = [symbol for library in libraries for symbol in symbols(library)]
    known = {name for name, _, defined in found if defined}
    wanted = {(name, version) for name, version, defined in found if not defined and name not in known and CUDA.match(name)}
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = Path(scratch, "stand_in.c"), Path(scratch, "versions.map")
        for library in needed:
            mine = sorted((name, version) for name, version in wanted if homes.get(version) == library)
            # What registers kernels at the start has succeeded; all else finds no device.
            returned = {name: 0 if name.startswith("__cuda") else NO_DEVICE for name, _ in mine}
            source.write_text("int empty_stand_in;\n" + "".join(f"long {n}() {{ return {v}; }}\n" for n, v in returned.items()))
            nodes = {version: [n for n, v in mine if v == version] for version in {v for _, v in mine if v}}
            versions.write_text("".join(f"{node} {{ {'; '.join(names)}; }};\n" for node, names in nodes.items()))
            script = [f"-Wl,--version-script={versions}"] if nodes else []
            tool("gcc", "-shared", "-fPIC", "-w", *script, f"-Wl,-soname,{library}", "-o", folder / library, source)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
