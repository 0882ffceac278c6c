//! Load on servers over loopback: `trike serve`, and llama.cpp's `llama-server` beside it where it is found.
//!
//! Two kinds of load. *Clients*: each of N sends a request when its last one has ended, which shows what all get together and each
//! alone. *Arrivals*: requests come at random times whether or not earlier ones have ended, as in life, which shows what a client waits.

mod client;
mod model;
mod report;

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use xshell::cmd;

use client::{Answer, ask};
use report::Row;

/// How long a server may load.
const LOADING: Duration = Duration::from_secs(300);

/// Options of the load test.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// GGUF file or model directory. Default: a file of random trits in the shape of `--synthetic`.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Shape of the file of random trits: 125m or 2b.
    #[arg(long, default_value = "125m")]
    synthetic: String,
    /// Numbers of clients, one run each.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    clients: Vec<usize>,
    /// Requests of each client.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Words of each prompt.
    #[arg(long, default_value_t = 16)]
    words: usize,
    /// New tokens of each request.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Arrivals per second, one run each; none by default.
    #[arg(long, value_delimiter = ',')]
    rate: Vec<f64>,
    /// Requests of a run of arrivals.
    #[arg(long, default_value_t = 32)]
    arrivals: usize,
    /// Tokens of a conversation whose second turn, 24 tokens more, is timed; 0 = none.
    #[arg(long, default_value_t = 0)]
    conversation: usize,
    /// Threads of each server.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Directory with `llama-server`, to be measured beside.
    #[arg(long, env = "TRIKE_RIVALS")]
    rivals: Option<PathBuf>,
}

/// A running server, stopped when dropped.
struct Server {
    name: String,
    address: SocketAddr,
    process: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(name: &str, program: &Path, port: u16, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut server =
            Self { name: name.to_owned(), address: SocketAddr::from(([127, 0, 0, 1], port)), process };
        let start = Instant::now();
        while !client::is_healthy(server.address) {
            if let Some(status) = server.process.try_wait()? {
                bail!("{name} ended while it was loading: {status}");
            }
            ensure!(start.elapsed() < LOADING, "{name} does not answer after {LOADING:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Peak resident memory in bytes, where the system says so.
    fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    }
}

/// A port that is free at this moment.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Runs the load and prints a table.
pub(crate) fn run(ws: &Workspace, options: &Options) -> Result<()> {
    cmd!(ws.sh, "cargo build --quiet --release --locked -p trike-cli --bin trike").quiet().run()?;
    let target = ws.metadata.target_directory.as_std_path();
    let model = match &options.model {
        Some(model) => model.clone(),
        None => model::file(&target.join("load-test"), &options.synthetic)?,
    };
    let most = options.clients.iter().copied().max().unwrap_or(1).max(16);
    let threads = options.threads.to_string();
    let start_trike = |port: u16| {
        let text = |text: &str| text.to_owned();
        let model = model.display().to_string();
        let arguments = [
            text("serve"),
            model,
            text("--port"),
            port.to_string(),
            text("--threads"),
            threads.clone(),
            text("--parallel"),
            most.to_string(),
        ];
        Server::start("trike", &target.join("release/trike"), port, &arguments)
    };
    let rival =
        options.rivals.as_ref().map(|folder| folder.join("llama-server")).filter(|program| program.is_file());
    println!(
        "{}: {} new tokens after {} words, {} threads",
        model.display(),
        options.tokens,
        options.words,
        options.threads
    );
    println!("{}", Row::HEAD);
    {
        let server = start_trike(free_port()?)?;
        loads(&server, options)?;
    }
    match rival {
        Some(program) => {
            let port = free_port()?;
            let context = most * (options.words * 4 + options.tokens + 64).max(512);
            let arguments: Vec<String> = [
                "-m",
                &model.display().to_string(),
                "--port",
                &port.to_string(),
                "-t",
                &threads,
                "-np",
                &most.to_string(),
                "-c",
                &context.to_string(),
            ]
            .map(str::to_owned)
            .to_vec();
            loads(&Server::start("llama-server", &program, port, &arguments)?, options)?;
        }
        None => println!("llama-server: not found (TRIKE_RIVALS names the folder with it)"),
    }
    Ok(())
}

/// All loads on one server.
fn loads(server: &Server, options: &Options) -> Result<()> {
    // The first request pays for what is made lazily.
    ask(server.address, client::prompt(u64::MAX, 4), 2)?;
    for &clients in &options.clients {
        let start = Instant::now();
        let answers = clients_at_once(server.address, clients, options)?;
        let row = Row::of(&server.name, &format!("{clients} clients"), &answers, start.elapsed());
        println!("{row}");
    }
    for &rate in &options.rate {
        let start = Instant::now();
        let answers = arrivals(server.address, rate, options)?;
        println!("{}", Row::of(&server.name, &format!("{rate}/s"), &answers, start.elapsed()));
    }
    if options.conversation > 0 {
        match conversation(server.address, options.conversation) {
            Ok((first, second)) => println!(
                "{}: a conversation of {} tokens, and 24 more: first token of the first turn after {first:.3} s, of the second after {second:.3} s \
                 ({:.1} %)",
                server.name,
                options.conversation,
                second / first * 100.0
            ),
            // The context of a sequence of another server may be too short.
            Err(error) => {
                println!("{}: a conversation of {} tokens: {error}", server.name, options.conversation);
            }
        }
    }
    if let Some(bytes) = server.peak_memory() {
        println!("{}: peak memory {:.2} GB", server.name, bytes as f64 / 1e9);
    }
    Ok(())
}

/// Seconds to the first token of two turns of a conversation.
fn conversation(address: SocketAddr, tokens: usize) -> Result<(f64, f64)> {
    let first = client::ids(7, tokens);
    let one = ask(address, first.clone(), 16)?;
    // The answer and a short question, as far as the server can know.
    let two = ask(address, [first, client::ids(8, 24)].concat(), 16)?;
    Ok((one.first.as_secs_f64(), two.first.as_secs_f64()))
}

/// Clients that each send requests one after another.
fn clients_at_once(address: SocketAddr, clients: usize, options: &Options) -> Result<Vec<Answer>> {
    std::thread::scope(|scope| {
        let one = |number: usize| {
            scope.spawn(move || {
                let round = |round: usize| {
                    ask(
                        address,
                        client::prompt((number * 1000 + round) as u64, options.words),
                        options.tokens,
                    )
                };
                (0..options.rounds).map(round).collect::<Result<Vec<Answer>>>()
            })
        };
        let threads: Vec<_> = (0..clients).map(one).collect();
        let mut all = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(answers) => all.extend(answers?),
                Err(_) => bail!("a client panicked"),
            }
        }
        Ok(all)
    })
}

/// Requests at random times: gaps of an exponential distribution.
fn arrivals(address: SocketAddr, rate: f64, options: &Options) -> Result<Vec<Answer>> {
    let mut noise = client::Noise(42);
    let mut at = 0.0;
    let times: Vec<f64> = (0..options.arrivals)
        .map(|_| {
            at += -(1.0 - noise.unit()).ln() / rate;
            at
        })
        .collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let one = |(number, at): (usize, &f64)| {
            let at = Duration::from_secs_f64(*at);
            scope.spawn(move || {
                std::thread::sleep(at.saturating_sub(start.elapsed()));
                ask(address, client::prompt(50_000 + number as u64, options.words), options.tokens)
            })
        };
        let threads: Vec<_> = times.iter().enumerate().map(one).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(answer) => answer,
            Err(_) => bail!("a client panicked"),
        });
        joined.collect()
    })
}

/// Connects, for tests of the address.
fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).context("cannot connect")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
