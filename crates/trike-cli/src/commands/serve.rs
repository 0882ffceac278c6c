//! `trike serve`.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, bail};
use trike::{
    KvPrecision, ModelFile,
    engine::{Engine, EngineError, EngineOptions},
    serve::{ServeOptions, ServedModel, Server},
};

use super::{chat::chosen_template, conflict, load::open};
use crate::{
    args::{KvChoice, ServeArgs},
    interrupt, output,
};

/// How often Ctrl-C is looked for.
const POLL: Duration = Duration::from_millis(50);

/// Serves until Ctrl-C or SIGTERM.
pub(super) fn serve(args: &ServeArgs, quiet: bool) -> anyhow::Result<()> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    let own = || output::named(&args.model.given().display().to_string());
    let name = args.alias.first().cloned().unwrap_or_else(own);
    let template = chosen_template(&args.template, &file, &tokenizer)?;
    let can_chat = template.is_some();
    let aliases: Vec<String> = args.alias.iter().skip(1).cloned().collect();
    let model = ServedModel::new(&name, template, file.generation_config()?).with_aliases(aliases);
    let keys = args.api_key_file.as_deref().map(keys).transpose()?.unwrap_or_default();
    let is_open = keys.is_empty() && !args.host.is_loopback();
    let options = ServeOptions::default()
        .with_address(SocketAddr::new(args.host, args.port))
        .with_keys(keys)
        .with_origin(args.cors.clone())
        .with_timeout(Duration::from_secs(args.timeout));
    let kv = precision(args)?;
    let load = args.precision.options(&file, &args.cpu.cpu()?).with_tokenizer(tokenizer);
    let engine = EngineOptions::default()
        .with_sequences(args.parallel)
        .with_queue(args.queue)
        .with_context(args.context)
        .with_memory(args.kv_memory)
        .with_prompt_share(args.prompt_share)
        .with_reuse(!args.no_reuse)
        .with_kv(kv);
    engine.validate(file.config().spec.context).map_err(EngineError::from)?;
    let device = open(&args.device.device, quiet)?;
    let engine = Engine::start(engine, move || device.load(&file, &load, &mut |_, _| ()))?;
    let server = Server::bind(engine, model, options)?;
    let address = server.address();
    if !quiet {
        output::note(&format!("http://{address}: loading {name}"));
    }
    if is_open {
        output::note("anybody who reaches this machine can use the model: --api-key-file FILE asks for keys");
    }
    let (wait, stop) = (server.waiter(), server.stopper());
    let failure = Arc::new(OnceLock::new());
    let failed = Arc::clone(&failure);
    let stop_failed = stop.clone();
    std::thread::spawn(move || match wait.wait() {
        Ok(()) if quiet => {}
        Ok(()) if can_chat => output::note(&format!("ready: http://{address}/v1/chat/completions")),
        Ok(()) => output::note(&format!(
            "ready: http://{address}/v1/completions; the model has no chat template, so that chats are refused"
        )),
        Err(error) => {
            // It is set here only.
            let _ = failed.set(error);
            stop_failed.stop();
        }
    });
    interrupt::stop_gracefully();
    std::thread::spawn(move || {
        while !interrupt::requested() {
            std::thread::sleep(POLL);
        }
        if !quiet {
            output::note("stopping when the answers have ended; Ctrl-C again stops at once");
        }
        // The second Ctrl-C ends the command.
        interrupt::resume();
        stop.stop();
    });
    server.run()?;
    match failure.get() {
        Some(error) => Err(error.clone().into()),
        None => Ok(()),
    }
}

/// The lines of a file of keys.
fn keys(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the keys of {}", path.display()))?;
    let keys: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if keys.is_empty() {
        bail!("{}: no keys: write one per line", path.display());
    }
    Ok(keys)
}

/// The precision of keys and values, which the layers of a server share.
fn precision(args: &ServeArgs) -> anyhow::Result<Option<KvPrecision>> {
    match args.precision.kv {
        None => Ok(None),
        Some(KvChoice::Given(kv)) if kv.is_uniform() => Ok(Some(kv.of_layer(0))),
        Some(KvChoice::Given(_) | KvChoice::Auto) => {
            Err(conflict("--kv: a server has one precision for all layers, such as --kv int8"))
        }
    }
}
