//! The package table: one row per package of the workspace, bottom up.
//!
//! [`layering`](crate::layering) checks manifests and sources against these rows, and [`pages`](crate::pages)
//! generates the tables of the handbook from them. A new dependency, or a new place for `unsafe`, is therefore a
//! visible change of this file.

/// One package.
pub(crate) struct Row {
    /// A package depends only on packages of lower layers; [`DEV`] for tools and tests, which are never published.
    pub(crate) layer: u8,
    pub(crate) name: &'static str,
    /// Its purpose in one line.
    pub(crate) purpose: &'static str,
    /// Workspace dependencies of the manifest, without dev-dependencies; a `?` after a name: optional, behind a
    /// feature.
    pub(crate) uses: &'static str,
    /// Registry dependencies of the manifest, without dev-dependencies; `?` as above.
    pub(crate) registry: &'static str,
    /// Files and folders of the package that may contain `unsafe`, each with the reason.
    pub(crate) unsafe_in: &'static [(&'static str, &'static str)],
}

/// The layer of tools and tests.
pub(crate) const DEV: u8 = u8::MAX;

/// All packages, each after its dependencies.
pub(crate) const HOUSE: &[Row] = &[
    Row {
        layer: 0,
        name: "trike-models",
        purpose: "the files of the bundled model",
        uses: "",
        registry: "",
        unsafe_in: &[],
    },
    Row {
        layer: 0,
        name: "trike-trit",
        purpose: "trit tensors: trits, planes, packed encodings, scales, edits in place",
        uses: "",
        registry: "bytemuck half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 1,
        name: "trike-core",
        purpose: "shared types: tensors, precisions, specs of operations, costs, options, device names",
        uses: "trike-trit",
        registry: "half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 1,
        name: "trike-host",
        purpose: "the host machine: instruction sets, thread pool, huge pages, measured peaks",
        uses: "",
        registry: "bytemuck libc memmap2 thiserror",
        unsafe_in: &[
            ("src/bus.rs", "a signal handler"),
            ("src/map.rs", "mapped files"),
            ("src/memory.rs", "huge pages"),
            ("src/pool/crew/mod.rs", "work handed to threads"),
            ("src/probe/x86.rs", "SIMD"),
        ],
    },
    Row {
        layer: 2,
        name: "trike-format",
        purpose: "reading and writing model files: GGUF, safetensors directories, llama2.c",
        uses: "trike-trit trike-core trike-host",
        registry: "bytemuck half safetensors serde_json tempfile thiserror",
        unsafe_in: &[("src/map.rs", "mapped files"), ("tests/hostile.rs", "a counting allocator in a test")],
    },
    Row {
        layer: 2,
        name: "trike-popcount",
        purpose: "trits times trits on the host: dot products, matches, bundles, top-k search",
        uses: "trike-trit trike-core trike-host",
        registry: "thiserror",
        unsafe_in: &[("src/lanes/x86.rs", "SIMD"), ("src/planes.rs", "SIMD")],
    },
    Row {
        layer: 2,
        name: "trike-cpu",
        purpose: "host kernels: linear layers, attention, norms, rotary embedding, gates, and their backward passes",
        uses: "trike-trit trike-core trike-host",
        registry: "bytemuck half thiserror",
        unsafe_in: &[
            ("src/attention/lanes", "SIMD"),
            ("src/kernels", "SIMD"),
            ("src/simd", "SIMD"),
            ("src/ternary/permutes/avx512.rs", "SIMD"),
            ("src/ternary/sparse/avx512.rs", "SIMD"),
            ("tests/it/tiles.rs", "a mapped file in a test"),
        ],
    },
    Row {
        layer: 2,
        name: "trike-cube",
        purpose: "GPU kernels, one CubeCL source each; the only crate that uses CubeCL's host interface",
        uses: "trike-trit trike-core",
        registry: "bytemuck cubecl cubecl-cuda? cubecl-hip? half thiserror",
        // Kernels rely on lengths checked by their launcher, and every operation has a launcher.
        unsafe_in: &[("src", "kernel launches")],
    },
    Row {
        layer: 2,
        name: "trike-model",
        purpose: "what a decoder is, once: sizes, names and shapes of weights, the block as a function over operations",
        uses: "trike-core",
        registry: "",
        unsafe_in: &[],
    },
    Row {
        layer: 3,
        name: "trike-vsa",
        purpose: "hypervector algebra on either kind of popcount kernel: memories, structures, capacity, encodings",
        uses: "trike-trit trike-core trike-host trike-popcount trike-cube?",
        registry: "serde thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 3,
        name: "trike-quant",
        purpose: "quantization algorithms on matrices and statistics, independent of any model",
        uses: "trike-trit trike-core trike-cpu",
        registry: "half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 3,
        name: "trike-autodiff",
        purpose: "training: operations of a decoder with their gradients on a tape, ternarization with straight-through gradients",
        uses: "trike-core trike-trit trike-cpu trike-cube?",
        registry: "thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 3,
        name: "trike-comm",
        purpose: "ranks: messages in process and over MPI, sums whose bits do not depend on the ranks, gradient codecs",
        uses: "",
        registry: "crc32c mpi? thiserror",
        unsafe_in: &[("src/mpi.rs", "memory of messages that MPI reads")],
    },
    Row {
        layer: 3,
        name: "trike-hub",
        purpose: "models by their names on the HuggingFace hub: names, the cache of the hub's tools, downloads",
        uses: "trike-format trike-models?",
        registry: "ring? serde? serde_json thiserror ureq?",
        unsafe_in: &[],
    },
    Row {
        layer: 4,
        name: "trike-nn",
        purpose: "the `Backend` traits, the decoder on them, sequences and their KV caches",
        uses: "trike-trit trike-core trike-model trike-cpu trike-cube? trike-comm",
        registry: "thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 4,
        name: "trike-text",
        purpose: "tokenizers, chat templates, samplers, grammars, parts of replies, streaming detokenization; independent of any model",
        uses: "trike-core",
        registry: "llguidance minijinja rand_chacha serde serde_json thiserror tokenizers",
        unsafe_in: &[],
    },
    Row {
        layer: 4,
        name: "trike-report",
        purpose: "reports as self-contained HTML pages: tables, figures, plots",
        uses: "",
        registry: "minijinja serde thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 5,
        name: "trike-candle",
        purpose: "Candle modules: `TernaryLinear` and the rest of a block",
        uses: "trike-trit trike-core trike-popcount trike-cpu trike-nn",
        registry: "candle-core candle-nn thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 5,
        name: "trike-llm",
        purpose: "models: loading, generation, sessions, conversion",
        uses: "trike-trit trike-core trike-cpu trike-comm trike-format trike-hub trike-nn trike-text",
        registry: "half serde serde_json thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 6,
        name: "trike-eval",
        purpose: "measurements over any model: perplexity, divergence, tasks, needles, KV caches, speed",
        uses: "trike-core trike-cpu trike-nn trike-llm",
        registry: "serde serde_json thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 6,
        name: "trike-engine",
        purpose: "many requests for one model at once: scheduler, pages of keys and values, prefix tree",
        uses: "trike-core trike-host trike-nn trike-llm",
        registry: "thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 7,
        name: "trike-serve",
        purpose: "an HTTP server with the APIs of OpenAI and Anthropic",
        uses: "trike-core trike-text trike-llm trike-engine",
        registry: "axum base64 serde serde_json subtle thiserror tokio tokio-stream",
        unsafe_in: &[],
    },
    Row {
        layer: 7,
        name: "trike-calibrate",
        purpose: "quantization of models: sensitivities, budgets, tuning, folds, edits, report",
        uses: "trike-trit trike-core trike-model trike-cpu trike-format trike-quant trike-autodiff trike-nn trike-report trike-llm trike-eval",
        registry: "half rand_chacha serde serde_json thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 7,
        name: "trike-train",
        purpose: "training of models: data, gradients of whole decoders, optimizers, schedules, the loop",
        uses: "trike-trit trike-core trike-model trike-cpu trike-cube? trike-comm trike-format trike-autodiff trike-nn trike-report trike-text trike-llm",
        registry: "crc32c half parquet? rand_chacha safetensors serde serde_json serde_yaml_ng sha2 tempfile? thiserror toml",
        unsafe_in: &[("tests/memory.rs", "a counting allocator in a test")],
    },
    Row {
        layer: 8,
        name: "trike",
        purpose: "the facade; re-exports without logic",
        uses: "trike-trit trike-core trike-model trike-cpu trike-comm trike-format trike-hub trike-vsa trike-quant trike-nn trike-text trike-candle? trike-llm \
               trike-eval trike-engine trike-serve? trike-calibrate trike-autodiff trike-train",
        registry: "",
        unsafe_in: &[],
    },
    Row {
        layer: 9,
        name: "trike-cli",
        purpose: "the `trike` command",
        uses: "trike",
        registry: "anyhow clap clap_complete clap_mangen comfy-table ctrlc indicatif rustyline serde serde_json",
        unsafe_in: &[],
    },
    Row {
        layer: 10,
        name: "trike-py",
        purpose: "the Python package",
        uses: "trike trike-cli",
        registry: "numpy pyo3 serde serde_json",
        unsafe_in: &[],
    },
    Row {
        layer: DEV,
        name: "trike-testkit",
        purpose: "oracles, input tables and tolerances for tests",
        uses: "",
        registry: "approx serde_json zip",
        unsafe_in: &[],
    },
    Row {
        layer: DEV,
        name: "trike-reference",
        purpose: "the reference backend on Candle tensors, for tests",
        uses: "trike-trit trike-core trike-nn",
        registry: "candle-core candle-nn",
        unsafe_in: &[],
    },
    Row {
        layer: DEV,
        name: "trike-bench",
        purpose: "shared by the benchmarks on the host and on GPUs: catalogue of problems, timer, records, tables",
        uses: "trike-core trike-testkit",
        registry: "anyhow serde serde_json",
        unsafe_in: &[],
    },
    Row {
        layer: DEV,
        name: "trike-gpu-test",
        purpose: "compiles, emulates, runs and times the kernels for GPUs",
        uses: "trike-trit trike-core trike-cpu trike-cube trike-nn trike-testkit trike-bench",
        registry: "anyhow clap cubecl cubecl-common cubecl-cpp cubecl-environment cubecl-runtime cubecl-server cubecl-spirv \
                   cubecl-wgpu cubek-attention? cubek-matmul? cubek-std? cudarc half serde_json",
        unsafe_in: &[
            ("src/compile/cuda.rs", "calls of NVRTC"),
            ("src/record.rs", "a launch that CubeCL declares unsafe"),
            ("src/stand_in.rs", "a launch that CubeCL declares unsafe"),
            ("src/bench/rivals/cublas.rs", "a reference library without a safe interface"),
        ],
    },
    Row {
        layer: DEV,
        name: "trike-benches",
        purpose: "benchmarks on the host, timed against other libraries, and scaling of training on ranks",
        uses: "trike-trit trike-host trike-popcount trike-cpu trike-comm trike-format trike-nn trike-quant trike-llm trike-eval trike-calibrate trike-autodiff trike-train trike-text trike-models trike-testkit trike-bench",
        registry: "anyhow candle-core candle-nn clap gemm half rayon serde serde_json tempfile",
        unsafe_in: &[("src/gemm.rs", "a reference library without a safe interface")],
    },
    // No workspace dependencies: it must compile even if the checked crates do not.
    Row {
        layer: DEV,
        name: "xtask",
        purpose: "all checks of the repository: `cargo xtask ci`",
        uses: "",
        registry: "anyhow cargo_metadata clap serde_json xshell",
        unsafe_in: &[],
    },
];

impl Row {
    /// Names of a list, and whether each is optional.
    pub(crate) fn names(list: &'static str) -> impl Iterator<Item = (&'static str, bool)> {
        list.split_whitespace().map(|word| match word.strip_suffix('?') {
            Some(name) => (name, true),
            None => (word, false),
        })
    }

    pub(crate) fn is_dev(&self) -> bool {
        self.layer == DEV
    }
}

/// The row of a package.
pub(crate) fn row<'a>(house: &'a [Row], name: &str) -> Option<&'a Row> {
    house.iter().find(|row| row.name == name)
}

/// The layer of a package; one without a row counts as a tool until `layering` rejects it.
pub(crate) fn layer(name: &str) -> u8 {
    row(HOUSE, name).map_or(DEV, |row| row.layer)
}
