//! The layout of the help texts: the headings of `--help`, and the everyday options that `-h` shows.

use clap::{Arg, Command};

/// Headings and the ids of their options.
type Groups = &'static [(&'static str, &'static [&'static str])];

/// Groups of every command with many options.
const COMMON: Groups = &[
    ("Model", &["model", "tokenizer", "chat_template"]),
    (
        "Generation",
        &[
            "system",
            "max_tokens",
            "context",
            "window",
            "stop",
            "json_schema",
            "grammar",
            "regex",
            "prompt_cache",
        ],
    ),
    (
        "Sampling (defaults: as the model recommends)",
        &["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"],
    ),
    ("KV cache", &["kv", "kv_kl", "keys", "keys_top_k", "prompt_keys", "kv_limit", "evict"]),
    ("Precision", &["activations", "head", "layout"]),
    ("Device", &["device", "threads", "isa", "parallel"]),
    ("Output", &["output", "no_echo", "echo", "logprobs", "json", "verbose"]),
];

/// Groups of single commands, which come first.
const OWN: &[(&str, Groups)] = &[
    (
        "quantize",
        &[
            ("Size and quality", &["target", "planes", "group", "head", "plan", "plan_only"]),
            ("Texts", &["calibration", "sequences", "split", "seed", "eval", "curve"]),
            (
                "Method",
                &[
                    "method", "damping", "plain", "guided", "coupling", "mean", "salience", "rotate",
                    "hadamard", "encoding", "skip", "min_size",
                ],
            ),
            (
                "Tuning",
                &[
                    "no_tune",
                    "tune_block_epochs",
                    "tune_model_epochs",
                    "tune_rate",
                    "recover",
                    "tune_max_weights",
                ],
            ),
            ("Pruning", &["prune", "prune_by", "prune_pattern"]),
        ],
    ),
    ("perplexity", &[("Text", &["file", "split", "limit", "context", "base"])]),
    (
        "eval",
        &[("Tasks and texts", &["tasks", "text", "base", "split", "needle", "context", "seed", "limit"])],
    ),
    (
        "bench",
        &[(
            "Measurement",
            &[
                "synthetic",
                "encoding",
                "group",
                "prompt",
                "generate",
                "depth",
                "sequences",
                "repetitions",
                "tune",
            ],
        )],
    ),
    ("chat", &[]),
    ("embed", &[]),
    ("logits", &[]),
    ("run", &[]),
    (
        "serve",
        &[(
            "Server",
            &[
                "host",
                "port",
                "alias",
                "api_key_file",
                "cors",
                "parallel",
                "queue",
                "timeout",
                "kv_memory",
                "prompt_share",
                "no_reuse",
            ],
        )],
    ),
];

/// The options that `-h` shows.
const EVERYDAY: &[(&str, &[&str])] = &[
    (
        "run",
        &[
            "prompt",
            "file",
            "max_tokens",
            "context",
            "stop",
            "json_schema",
            "temperature",
            "top_p",
            "seed",
            "device",
            "threads",
            "no_echo",
            "json",
        ],
    ),
    (
        "chat",
        &["system", "max_tokens", "context", "temperature", "top_p", "seed", "device", "threads", "json"],
    ),
    (
        "quantize",
        &[
            "calibration",
            "eval",
            "output",
            "target",
            "planes",
            "group",
            "plan_only",
            "no_tune",
            "recover",
            "threads",
            "json",
            "verbose",
        ],
    ),
    (
        "train",
        &[
            "from",
            "data",
            "teacher",
            "planes",
            "group",
            "minutes",
            "steps",
            "epochs",
            "batch",
            "length",
            "learning_rate",
            "output",
            "check",
            "device",
            "threads",
            "json",
        ],
    ),
    ("perplexity", &["file", "split", "limit", "context", "base", "kv", "device", "threads", "json"]),
    ("eval", &["tasks", "text", "needle", "limit", "base", "kv", "threads", "json"]),
    ("logits", &["ids", "output", "device", "threads", "json"]),
    (
        "serve",
        &["host", "port", "alias", "api_key_file", "parallel", "context", "kv_memory", "device", "threads"],
    ),
    ("embed", &["prompt", "file", "pooling", "output", "device", "threads", "json"]),
    (
        "bench",
        &[
            "synthetic",
            "prompt",
            "generate",
            "depth",
            "sequences",
            "repetitions",
            "device",
            "threads",
            "tune",
            "json",
        ],
    ),
];

/// Sets headings and the options of `-h`. `brief` is for a command line with `-h`, which shows no variables.
pub(super) fn arranged(mut command: Command, brief: bool) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in &names {
        command = command.mut_subcommand(name, |sub| {
            let sub = sub.mut_args(|arg| option(name, arg, brief));
            sub.after_help(format!("All options, with examples: trike {name} --help"))
        });
    }
    command
        .mut_args(|arg| if brief { arg.hide_env(true) } else { arg })
        .after_help("Options of a command: trike COMMAND -h, or all with examples: trike COMMAND --help")
}

/// Sets the heading of an option of a command, and whether `-h` shows it.
fn option(command: &str, arg: Arg, brief: bool) -> Arg {
    if arg.is_positional() {
        return arg;
    }
    let id = arg.get_id().as_str().to_owned();
    let of = |list: &[&str]| list.contains(&id.as_str());
    let own = OWN.iter().find(|(name, _)| *name == command).map(|(_, groups)| *groups);
    let everyday = EVERYDAY.iter().find(|(name, _)| *name == command).map(|(_, ids)| *ids);
    let heading = own.and_then(|own| own.iter().chain(COMMON).find(|(_, ids)| of(ids)));
    let is_hidden = everyday.map_or(id == "model", |ids| !of(ids));
    let arg = match heading {
        Some((heading, _)) => arg.help_heading(*heading),
        None => arg,
    };
    let arg = if brief { arg.hide_env(true) } else { arg };
    arg.hide_short_help(is_hidden)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn the_tables_name_options() {
        let cli = Cli::command();
        let ids = |name: &str| -> Vec<String> {
            let command = cli.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
            command.get_arguments().map(|arg| arg.get_id().to_string()).collect()
        };
        for (name, all) in EVERYDAY {
            let ids = ids(name);
            all.iter().for_each(|id| assert!(ids.iter().any(|known| known == id), "{name}: {id}"));
        }
        for (name, groups) in OWN {
            let ids = ids(name);
            let all = groups.iter().flat_map(|(_, all)| all.iter());
            all.for_each(|id| assert!(ids.iter().any(|known| known == id), "{name}: {id}"));
        }
    }
}
