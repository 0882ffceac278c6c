//! The house as data: one row for each package of the workspace, bottom up.
//!
//! [`layering`](crate::layering) holds manifests and sources against these rows, and [`pages`](crate::pages) writes the tables of
//! the handbook from them. A new dependency, or a new place for `unsafe`, is therefore a visible line of this file.

/// One package.
pub(crate) struct Row {
    /// A package uses packages of lower layers only; [`DEV`] for tools and tests, which are never published.
    pub(crate) layer: u8,
    pub(crate) name: &'static str,
    /// Its purpose in one line.
    pub(crate) purpose: &'static str,
    /// The workspace packages that its manifest names, except for tests; a `?` after a name: optional, behind a feature.
    pub(crate) uses: &'static str,
    /// The registry packages that its manifest names, except for tests; `?` as above.
    pub(crate) registry: &'static str,
    /// Files and folders of the package that may contain `unsafe`, each with the reason.
    pub(crate) unsafe_in: &'static [(&'static str, &'static str)],
}

/// The layer of tools and tests.
pub(crate) const DEV: u8 = u8::MAX;

/// Every package, each one after those that it uses.
pub(crate) const HOUSE: &[Row] = &[
    Row {
        layer: 0,
        name: "trike-trit",
        purpose: "what a trit tensor is: trits, planes, packed encodings, scales, edits in place",
        uses: "",
        registry: "bytemuck half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 1,
        name: "trike-core",
        purpose: "the shared vocabulary: tensors, precisions, specs of operations, costs, options, device names",
        uses: "trike-trit",
        registry: "half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 1,
        name: "trike-host",
        purpose: "the machine: instruction sets as values, the thread pool, huge pages, measured peaks",
        uses: "",
        registry: "bytemuck memmap2 thiserror",
        unsafe_in: &[
            ("src/memory.rs", "huge pages"),
            ("src/pool/crew.rs", "work handed to threads"),
            ("src/probe/x86.rs", "SIMD"),
        ],
    },
    Row {
        layer: 2,
        name: "trike-format",
        purpose: "model files, read and written: GGUF, safetensors directories, llama2.c",
        uses: "trike-trit trike-core",
        registry: "bytemuck half memmap2 safetensors serde_json tempfile thiserror",
        unsafe_in: &[
            ("src/map.rs", "mapped files"),
            ("tests/hostile.rs", "an allocator that counts in a test"),
        ],
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
        ],
    },
    Row {
        layer: 2,
        name: "trike-cube",
        purpose: "kernels for GPUs, one CubeCL source each; the only crate that touches CubeCL's host interface",
        uses: "trike-trit trike-core",
        registry: "bytemuck cubecl cubecl-cuda? cubecl-hip? half thiserror",
        // A kernel trusts the lengths that its launcher checked, and every operation has a launcher.
        unsafe_in: &[("src", "kernel launches")],
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
        purpose: "from floats to trits, as algorithms on matrices and statistics; knows no model",
        uses: "trike-trit trike-core trike-cpu",
        registry: "half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 4,
        name: "trike-nn",
        purpose: "the `Backend` trait, the one decoder driven by a spec, sequences and their caches",
        uses: "trike-trit trike-core trike-cpu trike-cube?",
        registry: "half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 4,
        name: "trike-text",
        purpose: "tokenizers, chat templates, samplers, streaming detokenization; knows no model",
        uses: "trike-core",
        registry: "minijinja minijinja-contrib rand_chacha serde serde_json thiserror tokenizers",
        unsafe_in: &[],
    },
    Row {
        layer: 5,
        name: "trike-candle",
        purpose: "for Candle users: `TernaryLinear` and the rest of a block as modules, and the reference backend",
        uses: "trike-trit trike-core trike-cpu trike-nn",
        registry: "candle-core candle-nn half thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 5,
        name: "trike-llm",
        purpose: "from a configuration to a model: loading, generation, scoring, conversion, the hub's cache",
        uses: "trike-trit trike-core trike-cpu trike-format trike-nn trike-text",
        registry: "half serde serde_json thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 6,
        name: "trike-calibrate",
        purpose: "the walk that quantizes a model: sensitivities, budgets, tuning, folds, edits, the report",
        uses: "trike-trit trike-core trike-cpu trike-format trike-quant trike-nn trike-llm",
        registry: "half plotters rand_chacha serde serde_json thiserror",
        unsafe_in: &[],
    },
    Row {
        layer: 7,
        name: "trike",
        purpose: "the facade: the few lines that a user types; no logic",
        uses: "trike-trit trike-core trike-cpu trike-format trike-vsa trike-quant trike-nn trike-text trike-candle? trike-llm \
               trike-calibrate",
        registry: "",
        unsafe_in: &[],
    },
    Row {
        layer: 8,
        name: "trike-cli",
        purpose: "the `trike` command",
        uses: "trike",
        registry: "anyhow clap clap_complete clap_mangen comfy-table ctrlc indicatif ring? serde serde_json thiserror? ureq?",
        unsafe_in: &[],
    },
    Row {
        layer: DEV,
        name: "trike-testkit",
        purpose: "oracles, input tables and tolerances for tests",
        uses: "",
        registry: "approx zip",
        unsafe_in: &[],
    },
    Row {
        layer: DEV,
        name: "trike-bench",
        purpose: "what benchmarks on the host and on GPUs share: the catalogue, the timer, records and tables",
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
            ("src/bench/rivals/cublas.rs", "a rival without a safe interface"),
        ],
    },
    Row {
        layer: DEV,
        name: "trike-benches",
        purpose: "the catalogue of problems on the host, timed beside rivals",
        uses: "trike-trit trike-popcount trike-cpu trike-nn trike-llm trike-testkit trike-bench",
        registry: "anyhow candle-core clap gemm half rayon",
        unsafe_in: &[("src/gemm.rs", "a rival without a safe interface")],
    },
    // It uses nothing of the workspace: it must compile in spite of errors in everything that it checks.
    Row {
        layer: DEV,
        name: "xtask",
        purpose: "everything that must hold, as `cargo xtask ci`",
        uses: "",
        registry: "anyhow cargo_metadata clap xshell",
        unsafe_in: &[],
    },
];

impl Row {
    /// The names of a list with whether each is optional.
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

/// The layer of a package; one without a row counts as a tool until `layering` refuses it.
pub(crate) fn layer(name: &str) -> u8 {
    row(HOUSE, name).map_or(DEV, |row| row.layer)
}
