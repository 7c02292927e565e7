"""The shipped descriptors: up to date, and apart from everybody else's."""

import subprocess
import sys
from pathlib import Path

import fuseblock
from google.protobuf import descriptor_pb2, descriptor_pool

PACKAGE = Path(fuseblock.__file__).parent


def test_descriptors_are_those_of_the_wire_contract(tmp_path):
    fresh = tmp_path / "fresh.binpb"
    subprocess.run([PACKAGE.parent / "update_descriptors.sh", fresh], check=True)

    def parse(path: Path) -> descriptor_pb2.FileDescriptorSet:
        return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())

    shipped, expected = parse(PACKAGE / "descriptors.binpb"), parse(fresh)
    assert shipped == expected, "run client/python/update_descriptors.sh"


def test_the_default_pool_is_left_alone():
    """Another package may register files of the same names with other contents."""
    pool = descriptor_pool.Default()
    for name in ("fuseblock/v1/block_service.proto", "grpc/health/v1/health.proto"):
        file = descriptor_pb2.FileDescriptorProto(name=name, package="somebody.elses")
        pool.AddSerializedFile(file.SerializeToString())
        assert pool.FindFileByName(name).package == "somebody.elses"


def test_importing_needs_neither_torch_nor_ml_dtypes():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['ml_dtypes'] = None; "
        "import numpy, fuseblock.tensors as t; t.to_wire('x', numpy.zeros(1, 'f4'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
