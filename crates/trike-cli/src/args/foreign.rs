//! Options of llama.cpp, ollama and other tools that Trike does not have: the error names what to use instead. Those with the same
//! meaning are hidden aliases of ours.

use std::ffi::OsString;

use clap::{
    CommandFactory, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

const SAMPLERS: &str = "Trike samples with --temperature, --top-k, --top-p, --min-p and --repetition-penalty";
const DEVICE: &str = "use --device, such as --device cuda:0; `trike doctor` lists the devices";
const DEVICES: &str =
    "use --device with a list, such as --device cuda:0,cuda:1 or --device cuda:0=20,cuda:1=12";
const KV: &str = "use --kv for keys and values, such as --kv int8";

/// Options and their replacements.
const REPLACEMENTS: &[(&[&str], &str)] = &[
    (&["-ngl", "--n-gpu-layers", "--gpu-layers", "--num-gpu", "-dev", "--gpu"], DEVICE),
    (&["-mg", "--main-gpu", "-ts", "--tensor-split", "-sm", "--split-mode"], DEVICES),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], KV),
    (&["-fa", "--flash-attn"], "omit it: Trike chooses how attention is computed"),
    (&["-b", "--batch-size", "-ub", "--ubatch-size"], "omit it: Trike chooses the batch size"),
    (
        &["--mlock", "--no-mmap", "--mmap"],
        "omit it: `trike convert MODEL DIR --to trike --packed` writes a model that is mapped into memory",
    ),
    (&["-hf", "-hfr", "--hf-repo", "--hf"], "give the model as org/name or org/name:VARIANT"),
    (&["-hff", "--hf-file"], "give the file after the model: org/name:FILE"),
    (&["-sys"], "use --system"),
    (&["-j"], "use --json-schema"),
    (&["-s"], "use --seed"),
    (&["--grammar-file"], "use --grammar FILE; grammars are in Lark's syntax, not GBNF"),
    (&["-cnv", "--conversation", "-i", "--interactive", "--interactive-first"], "use `trike chat`"),
    (&["-no-cnv", "--no-conversation", "-st", "--single-turn"], "use `trike run`"),
    (&["--format"], "use --json-schema SCHEMA for generated JSON, or --json for a result in JSON"),
    (&["--repeat-last-n"], "omit it: the repetition penalty covers the last 64 tokens"),
    (
        &[
            "--mirostat",
            "--typical",
            "--typical-p",
            "--top-nsigma",
            "--presence-penalty",
            "--frequency-penalty",
            "--dry-multiplier",
            "--xtc-probability",
            "--samplers",
        ],
        SAMPLERS,
    ),
    (
        &["--bits", "--wbits", "--w-bits"],
        "use --planes N (a plane is one trit per weight, about 1.6 bits), or --target, such as --target 2.0bpw",
    ),
    (&["--imatrix", "--dataset"], "use --calibration FILE, a text"),
    (&["--outtype"], "use --to"),
    (&["--outfile"], "give the output after the input: trike convert INPUT OUTPUT"),
];

/// Rewords an error about an option of another tool, and removes the advice to pass an unknown option as a value.
pub(crate) fn reworded(mut error: Error, args: &[OsString]) -> Error {
    let kinds = [
        ErrorKind::UnknownArgument,
        ErrorKind::InvalidValue,
        ErrorKind::ValueValidation,
        ErrorKind::DisplayHelp,
        ErrorKind::ArgumentConflict,
    ];
    if !kinds.contains(&error.kind()) {
        return error;
    }
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(name))) => Some(name.clone()),
        _ => None,
    };
    let mut before = "";
    let given = args.iter().filter_map(|arg| arg.to_str()).take_while(|arg| *arg != "--");
    let mut replacement = given.filter_map(|arg| {
        // Values of these options may begin with a hyphen.
        let is_value = ["-p", "--prompt", "--stop", "--regex"].contains(&std::mem::replace(&mut before, arg));
        let name = arg.split('=').next().unwrap_or(arg);
        // Of a word such as `-ngl`, the error names one letter or a value; others are unknown as a whole.
        let is_word = name.len() > 2 && !name.starts_with("--");
        let is_unknown = unknown.as_deref() == Some(name);
        let (_, text) = REPLACEMENTS.iter().find(|(names, _)| names.contains(&name))?;
        ((is_word && !is_value) || is_unknown).then(|| format!("unexpected argument '{name}': {text}"))
    });
    let message = replacement.next();
    drop(replacement);
    if let Some(message) = message {
        return super::Cli::command().error(ErrorKind::UnknownArgument, message);
    }
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    fn error(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        reworded(Cli::read(&args).unwrap_err(), &args).to_string()
    }

    #[test]
    fn options_of_other_tools_are_explained() {
        for (line, part) in [
            ("trike run m.gguf -p x -ngl 99", "'-ngl': use --device"),
            ("trike run m.gguf --n-gpu-layers=99", "'--n-gpu-layers': use --device"),
            ("trike run -hf org/name", "'-hf': give the model as org/name"),
            ("trike run m.gguf -p x -fa", "'-fa': omit it"),
            ("trike chat m.gguf -ctk q8_0", "'-ctk': use --kv"),
            ("trike run m.gguf -cnv", "'-cnv': use `trike chat`"),
            ("trike run m.gguf -i", "'-i': use `trike chat`"),
            ("trike quantize m.gguf --bits 2", "'--bits': use --planes"),
            ("trike convert a b --outtype f16", "'--outtype': use --to"),
            ("trike run m.gguf --mirostat 2", "--min-p"),
        ] {
            let error = error(line);
            assert!(error.contains(part) && !error.contains(" -- "), "{line}: {error}");
        }
        // Neither values nor options that exist.
        assert!(error("trike run m.gguf --frobnicate").contains("'--frobnicate'"));
        assert!(!error("trike run m.gguf --frobnicate").contains("as a value"));
        assert!(error("trike run m.gguf --promt x").contains("'--prompt'"));
        assert!(error("trike run --help").contains("Continue a prompt"));
        assert!(error("trike run m.gguf -n x").contains("'x'"));
        assert!(Cli::read(&["trike", "run", "-p", "-ngl"].map(OsString::from)).is_ok());
    }

    #[test]
    fn options_with_the_same_meaning_are_aliases() {
        for line in [
            "trike run m -p x --ctx-size 9 --n-predict 9 --temp 1 --repeat-penalty 1 --no-display-prompt",
            "trike chat m --num-ctx 9 --num-predict 9 --system-prompt x --reverse-prompt x",
            "trike perplexity m -f x --ctx-size 9 --chunks 2",
            "trike bench m --n-prompt 9 --n-gen 9 --n-depth 0",
            "trike ls",
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Cli::read(&args).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
