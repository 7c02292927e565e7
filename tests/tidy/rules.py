"""The house rules as data: who may include whom, which library lives where, forbidden words."""

import re

PB_HEADER = r"(fuseblock|grpc|google)/.*\.pb\.h"

# The first entry whose pattern matches a file tells what it may include from this repository. Paths
# are matched from their start; {room} is the file's own kernel room.
INCLUDES = [
    (r"kernels/base/", [r"kernels/base/"]),
    (r"kernels/block/", [r"kernels/"]),
    (r"kernels/cuda/", [r"kernels/"]),
    (r"kernels/list\.", [r"kernels/"]),
    (r"kernels/linear_bias_gelu/", [r"kernels/(base|linear_bias_gelu|linear)/"]),
    (
        r"kernels/feed_forward/",
        [r"kernels/(base|feed_forward|linear|linear_bias_gelu|swiglu|geglu|gelu_tanh|gelu_erf)/"],
    ),
    (r"kernels/(?P<room>mlp_\w+)/", [r"kernels/(base|feed_forward)/", r"kernels/{room}/"]),
    (
        r"kernels/ffn_path/",
        [r"kernels/(base|ffn_path|feed_forward|rms_norm|add_rms_norm|add_residual)/"],
    ),
    (r"kernels/(?P<room>\w+)/", [r"kernels/base/", r"kernels/{room}/"]),
    (r"server/model/", [r"kernels/", r"server/model/", r"server/reason\.h"]),
    (r"server/observe/", [r"kernels/base/", r"server/observe/", r"server/reason\.h"]),
    (r"server/engine/", [r"kernels/", r"server/(engine|model|observe)/", r"server/reason\.h"]),
    (
        r"server/rpc/",
        [r"kernels/base/", r"server/", r"proto/", r"(fuseblock|grpc|google)/.*\.pb\.h"],
    ),
    (r"server/reason\.", [r"server/reason\.h"]),
    (r"server/", [r"kernels/", r"server/"]),
    # `fuseblock kernels` prints the implementations of the machine that it runs on.
    (r"client/cli/kernels\w*\.", [r"kernels/", r"client/"]),
    (r"client/", [r"client/", r"proto/", PB_HEADER]),
]

# What counts as a file of this repository in an #include "...".
OURS = re.compile(r"(kernels|server|client|proto|tests|tools|examples)/|.*\.pb\.h$")

# Third-party headers, and the only places that may include them.
LIBRARIES = [
    ("gRPC", r"grpc(pp)?/|grpc\+\+/", r"server/rpc/|client/"),
    ("protobuf", r"google/protobuf/|.*\.pb\.h$", r"server/rpc/|client/|proto/"),
    ("prometheus", r"prometheus/", r"server/observe/"),
    ("spdlog", r"spdlog/", r"server/observe/"),
    ("civetweb", r"civetweb", r"server/observe/"),
    ("nlohmann-json", r"nlohmann/", r"server/(model|observe)/|client/"),
    ("OpenSSL", r"openssl/", r"server/(model|rpc)/\w+\.cc$"),
    ("Highway", r"hwy/", r"kernels/\w+/\w+(_cpu\w*\.(cc|h)|-inl\.h)$"),
    (
        "CUDA",
        r"cuda|cublas|cutlass|cub/|cooperative_groups|mma\.h|nvml",
        r"kernels/cuda/|kernels/base/cuda\.|kernels/\w+/\w+_cuda\w*\.|.*\.cuh?$",
    ),
    ("toml++", r"toml\+\+/", r"server/config\w*\.cc$"),
    ("cairo", r"cairo", r"client/cli/(chart|plot)\."),
    ("CLI11", r"CLI/", r"server/(config|command_line)\w*\.cc$|client/cli/"),
]

LINES_MAX = 600

# Spelled in pieces, so that this file does not break its own rules.
FORBIDDEN = [
    (re.compile(pattern), why)
    for pattern, why in [
        (r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", "unfinished work"),
        (r"\bDIS" r"ABLED_|GTEST_" r"SKIP|pytest\.mark\." r"skip|\bx" r"fail\b", "a skipped test"),
        (
            r"py"
            r"pi\.org|files\.python"
            r"hosted|crates\."
            r"io|registry\.npm"
            r"js|proxy\.gol"
            r"ang|deb\.deb"
            r"ian|repo1?\.ma"
            r"ven",
            "a package registry's host",
        ),
        (
            r"/wo" r"rk/|/op" r"t/(cuda|torchenv|gobin|smollm2|wheels)|\.\./sha" r"red",
            "a path of one machine",
        ),
        (r"(?i)\bthis ses" r"sion|\bC" r"EO\b|cla" r"ude|anthro" r"pic", "a word that is not ours"),
    ]
]

# Files that hold data, not code: no opening comment, no limit on their length.
DATA = re.compile(r"evidence/records/|tests/golden/.*\.(json|safetensors)$|.*\.(json|npy|png|svg)$")
OPENS_WITH = {
    ".cc": "//",
    ".h": "//",
    ".cu": "//",
    ".cuh": "//",
    ".proto": "//",
    ".sh": "#",
    ".py": '"""',
    ".toml": "#",
    ".yaml": "#",
    ".yml": "#",
    ".cmake": "#",
}
