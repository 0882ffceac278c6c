//! `trike serve`.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use super::{CpuArgs, DeviceArg, ModelArg, PrecisionArgs, TemplateArg, TokenizerArg, quantize::size};

/// Serve a model over HTTP with the APIs of OpenAI and Anthropic
///
/// Many clients at once: their texts are generated together, and prompts that begin alike are read once. Routes: /v1/chat/completions,
/// /v1/completions, /v1/embeddings, /v1/models, /tokenize, /detokenize, /apply-template, /health, /props, /slots, /metrics. Ctrl-C and
/// SIGTERM let the answers end that have begun.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Address to listen on; 0.0.0.0 = all networks of the machine
    #[arg(
        long,
        default_value = "127.0.0.1",
        env = "TRIKE_HOST",
        hide_env_values = true,
        value_name = "ADDRESS"
    )]
    pub(crate) host: IpAddr,
    /// Port; 0 = a free one
    #[arg(long, default_value_t = 8080, env = "TRIKE_PORT", hide_env_values = true, value_name = "N")]
    pub(crate) port: u16,
    /// Names of the model for clients, separated by commas; answers have the first [default: its own]
    #[arg(
        long,
        alias = "served-model-name",
        env = "TRIKE_ALIAS",
        hide_env_values = true,
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub(crate) alias: Vec<String>,
    /// File with the keys of clients, one per line; without it, everybody who reaches the address is served
    #[arg(long, env = "TRIKE_API_KEY_FILE", hide_env_values = true, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Web origin whose pages may use the server, such as https://example.org; * = all [default: none]
    #[arg(long, env = "TRIKE_CORS", hide_env_values = true, value_name = "ORIGIN")]
    pub(crate) cors: Option<String>,
    /// Requests that run at once; others wait
    #[arg(
        long,
        aliases = ["np", "max-num-seqs"],
        default_value_t = 16,
        env = "TRIKE_PARALLEL",
        hide_env_values = true,
        value_name = "N"
    )]
    pub(crate) parallel: usize,
    /// Requests that may wait; further ones are answered with status 429
    #[arg(long, default_value_t = 256, env = "TRIKE_QUEUE", hide_env_values = true, value_name = "N")]
    pub(crate) queue: usize,
    /// Maximum number of tokens of prompt and answer [default: the model's]
    #[arg(
        short,
        long,
        aliases = ["ctx-size", "num-ctx", "max-model-len"],
        env = "TRIKE_CONTEXT",
        hide_env_values = true,
        value_name = "N"
    )]
    pub(crate) context: Option<usize>,
    /// Memory for keys and values of all requests, such as 4GB [default: what all requests can use, at most half of the free memory]
    #[arg(long, env = "TRIKE_KV_MEMORY", hide_env_values = true, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_memory: Option<u64>,
    /// Prompt tokens read in a step beside the tokens of other answers: fewer = more even answers, slower prompts
    #[arg(long, default_value_t = 64, env = "TRIKE_PROMPT_SHARE", hide_env_values = true, value_name = "N")]
    pub(crate) prompt_share: usize,
    /// Do not keep keys and values of earlier texts for prompts that begin alike
    #[arg(long, env = "TRIKE_NO_REUSE", hide_env_values = true)]
    pub(crate) no_reuse: bool,
    /// Seconds after which a request fails
    #[arg(
        long,
        default_value_t = 600,
        env = "TRIKE_TIMEOUT",
        hide_env_values = true,
        value_name = "SECONDS"
    )]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) template: TemplateArg,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
}
