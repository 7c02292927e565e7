#!/usr/bin/env python3
"""Plants a violation of each house rule and sees that it is found, and its innocent twin is not."""

import unittest

import tidy

# path, content, words of the finding; None: nothing to find.
CASES = [
    ("kernels/base/a.h", '// A.\n#include "kernels/silu/silu.h"\n', "kernels/silu/silu.h"),
    ("kernels/silu/silu.cc", '// A.\n#include "kernels/swiglu/swiglu.h"\n', "kernels/swiglu"),
    ("kernels/silu/silu.cc", '// A.\n#include "kernels/silu/silu.h"\n', None),
    ("kernels/block/block.cc", '// A.\n#include "kernels/silu/silu.h"\n', None),
    ("kernels/feed_forward/m.cc", '// A.\n#include "kernels/linear/linear.h"\n', None),
    ("kernels/mlp_swiglu/m.cc", '// A.\n#include "kernels/rms_norm/rms_norm.h"\n', "rms_norm"),
    ("kernels/silu/silu.cc", '// A.\n#include "server/reason.h"\n', "server/reason.h"),
    ("server/model/a.cc", '// A.\n#include "server/engine/engine.h"\n', "server/engine"),
    ("server/observe/a.cc", '// A.\n#include "server/engine/engine.h"\n', "server/engine"),
    ("server/engine/a.cc", '// A.\n#include "server/rpc/codec.h"\n', "server/rpc"),
    ("server/engine/a.cc", '// A.\n#include "server/model/registry.h"\n', None),
    ("server/engine/a.cc", "// A.\n#include <grpcpp/grpcpp.h>\n", "gRPC"),
    ("server/engine/a.cc", '// A.\n#include "fuseblock/v1/block_service.pb.h"\n', "pb.h"),
    ("server/rpc/a.cc", '// A.\n#include "fuseblock/v1/block_service.pb.h"\n', None),
    ("server/rpc/a.cc", "// A.\n#include <grpcpp/grpcpp.h>\n", None),
    ("server/rpc/a.cc", "// A.\n#include <prometheus/counter.h>\n", "prometheus"),
    ("server/observe/a.cc", "// A.\n#include <prometheus/counter.h>\n", None),
    ("server/engine/a.cc", "// A.\n#include <cuda_runtime.h>\n", "CUDA"),
    ("kernels/silu/silu_cuda.cu", "// A.\n#include <cuda_bf16.h>\n", None),
    ("kernels/silu/silu_ref.cc", '// A.\n#include "hwy/highway.h"\n', "Highway"),
    ("kernels/silu/silu_cpu.cc", '// A.\n#include "hwy/highway.h"\n', None),
    ("server/main.cc", "// A.\n#include <toml++/toml.h>\n", "toml"),
    ("server/config.cc", "// A.\n#include <toml++/toml.h>\n", None),
    ("client/cpp/a.cc", '// A.\n#include "kernels/list.h"\n', "kernels/list.h"),
    ("client/cli/kernels.cc", '// A.\n#include "kernels/list.h"\n', None),
    ("server/rpc/a.cc", "#include <vector>\n", "does not open with"),
    ("server/rpc/codec.cc", '#include "server/rpc/codec.h"\n', None),
    ("tools/a.py", "import sys\n", "does not open with"),
    ("tools/a.py", '#!/usr/bin/env python3\n"""Tool."""\n', None),
    ("server/rpc/a.cc", "// A.\n" * 601, "601 lines"),
    ("server/rpc/a.cc", "// TO" + "DO: later\n", "unfinished"),
    ("tests/unit/a.cc", "// A.\nTEST(A, DIS" + "ABLED_B) {}\n", "skipped test"),
    ("README.md", "see https://py" + "pi.org/project\n", "registry"),
    ("dev", "# A.\ncd /wo" + "rk/main\n", "one machine"),
    ("README.md", "written in this ses" + "sion\n", "not ours"),
]


class Tidy(unittest.TestCase):
    def test_each_planted_violation_is_found(self) -> None:
        for path, content, expected in CASES:
            with self.subTest(path=path, content=content[:80]):
                found = list(tidy.check(path, content.encode()))
                if expected is None:
                    self.assertEqual(found, [])
                else:
                    self.assertTrue(any(expected in finding for finding in found), found)


if __name__ == "__main__":
    unittest.main()
