//! Text form of results.

mod models;
mod needle;

use std::fmt::{Display, Write};

use comfy_table::{CellAlignment, Row, Table, TableStyle, presets};
use trike::{
    ConvertReport, Inspection, QuantizeReport,
    calibrate::EditReport,
    train::run::{Ended, HeldOutLoss, RunPlan, RunReport},
};

use crate::{
    commands::{
        BenchOutcome, Diagnosis, EmbedOutcome, EvalOutcome, LimitOutcome, LogitsOutcome, Measured,
        MemoryOutcome, PerplexityOutcome, QuantizeOutcome, RunOutcome, TrainOutcome,
    },
    output::{Show, bytes},
};

/// A table with `left` columns of text, followed by columns of numbers.
fn table(style: TableStyle, left: usize, header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_style(style).set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Renders a table without lines and without left padding.
fn plain(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

/// Names and values, one pair per line.
fn facts<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in pairs {
        table.add_row([name.to_owned(), value]);
    }
    plain(table)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

impl Show for RunOutcome {
    fn text(&self) -> String {
        format!("{}{}\n", self.prompt, self.text)
    }
}

impl Show for EmbedOutcome {
    fn text(&self) -> String {
        let line = |row: &Vec<f32>| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ") + "\n";
        match &self.output {
            Some(path) => format!("{path}: f32, {} x {}\n", self.tokens.len(), self.width),
            None => self.embeddings.iter().map(line).collect(),
        }
    }
}

impl Show for Inspection {
    fn text(&self) -> String {
        let mut head = vec![("path", self.path.clone()), ("format", self.format.to_owned())];
        if let Some(m) = &self.model {
            head.extend([
                ("architecture", m.architecture.clone()),
                ("layers", m.layers.to_string()),
                ("hidden", m.hidden.to_string()),
                ("intermediate", m.intermediate.to_string()),
                ("heads", format!("{} query, {} key/value, head_dim {}", m.heads, m.kv_heads, m.head_dim)),
                ("vocabulary", m.vocab.to_string()),
                ("context", m.context.to_string()),
                ("rope theta", m.rope_theta.to_string()),
                ("output head", if m.tied_head { "tied to the embedding" } else { "separate" }.to_owned()),
            ]);
        }
        if let Some(refusal) = &self.refusal {
            head.push(("cannot run", refusal.clone()));
        }
        let columns =
            ["tensor", "shape", "encoding", "bytes", "bits/weight", "zeros", "scales", "min", "mean", "max"];
        let mut tensors = table(presets::NOTHING, 3, columns);
        for t in &self.tensors {
            let shape: Vec<String> = t.shape.iter().map(ToString::to_string).collect();
            let scale = |pick: fn(&trike::llm::ScaleReport) -> f32| {
                or_dash(t.scales.as_ref().map(|s| format!("{:.4e}", pick(s))))
            };
            tensors.add_row([
                t.name.clone(),
                shape.join(" x "),
                t.encoding.clone(),
                t.bytes.to_string(),
                format!("{:.3}", t.bits_per_weight),
                or_dash(t.zeros.map(percent)),
                or_dash(t.scales.as_ref().map(|s| format!("{} x {}", s.count, s.granularity))),
                scale(|s| s.min),
                scale(|s| s.mean),
                scale(|s| s.max),
            ]);
        }
        let t = &self.totals;
        let totals = [
            ("tensors", t.tensors.to_string()),
            ("parameters", t.parameters.to_string()),
            ("bytes", format!("{} ({})", t.bytes, bytes(t.bytes))),
            ("bits per weight", format!("{:.3}", t.bits_per_weight)),
            ("ternary parameters", t.ternary_parameters.to_string()),
            ("ternary bits per weight", or_dash(t.ternary_bits_per_weight.map(|b| format!("{b:.3}")))),
            ("ternary zeros", or_dash(t.ternary_zeros.map(percent))),
        ];
        let mut text = format!("{}\n{}\n{}", facts(head), plain(tensors), facts(totals));
        // A note that applies to many tensors is printed once.
        let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
        for t in &self.tensors {
            let Some(note) = t.note.as_deref() else { continue };
            match notes.iter_mut().find(|(known, _)| *known == note) {
                Some((_, names)) => names.push(&t.name),
                None => notes.push((note, vec![&t.name])),
            }
        }
        for (note, names) in notes {
            match names.as_slice() {
                [first, _, ..] => text += &format!("note: {first} and {} more: {note}\n", names.len() - 1),
                names => text += &format!("note: {}: {note}\n", names.concat()),
            }
        }
        text
    }
}

/// The selected keys, printed after the KV cache precision; empty for all.
fn selected(keys: &str, top_k: Option<usize>, prompt_keys: Option<f64>) -> String {
    let mut text = top_k.map_or_else(String::new, |top_k| format!(", {top_k} keys selected by {keys}"));
    if let Some(share) = prompt_keys {
        let _ = write!(text, ", prompts attend to {:.1} % of the keys", 100.0 * share);
    }
    text
}

/// The limit on cache positions, printed after the selection; empty for none.
fn limited(limit: Option<LimitOutcome>) -> String {
    let Some(LimitOutcome { kv_limit, evict }) = limit else { return String::new() };
    match evict {
        "oldest" => format!(", at most {kv_limit} positions, the oldest evicted"),
        by => format!(", at most {kv_limit} positions, evicted by {by}"),
    }
}

impl Show for MemoryOutcome {
    fn text(&self) -> String {
        let index =
            self.index.map_or(String::new(), |index| format!(", {} of it codes of keys", bytes(index)));
        let cache = bytes(self.cache);
        let mut text = facts([
            ("model", self.model.clone()),
            ("weights", bytes(self.weights)),
            ("KV cache", format!("{cache} ({} positions in {}{index})", self.positions, self.kv)),
            ("activations", bytes(self.scratch)),
            ("total", bytes(self.total)),
        ]);
        if !self.devices.is_empty() {
            let header = ["device", "layers", "weights", "KV cache", "activations", "total", "free"];
            let mut rows = table(presets::NOTHING, 1, header);
            for device in &self.devices {
                let last = device.first_layer + device.layers.saturating_sub(1);
                rows.add_row([
                    device.name.clone(),
                    format!("{}-{last}", device.first_layer),
                    bytes(device.weights),
                    bytes(device.cache),
                    bytes(device.scratch),
                    bytes(device.total),
                    device.available.map_or("unknown".to_owned(), bytes),
                ]);
            }
            text += "\n";
            text += &plain(rows);
        }
        text
    }
}

impl Show for ConvertReport {
    fn text(&self) -> String {
        let mut text = format!(
            "{}: {} tensors, {} of tensors in, {} of files out; ",
            self.output,
            self.tensors,
            bytes(self.input_bytes),
            bytes(self.output_bytes)
        );
        text += &match self.largest_change {
            0.0 => "all values exact\n".to_owned(),
            change => format!("largest change of a weight: {change:.2e} of the tensor's largest weight\n"),
        };
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text
    }
}

impl Show for EditReport {
    fn text(&self) -> String {
        let changed = self.changed.iter().map(|(name, trits)| format!("{name}: {trits} trits\n"));
        let undo = format!("edits that `trike edit {} --undo` can undo: {}\n", self.model, self.undoable);
        changed.chain([undo]).collect()
    }
}

impl Show for TrainOutcome {
    fn text(&self) -> String {
        match self {
            Self::Plan(plan) => training_plan(plan),
            Self::Run(report) => training_report(report),
        }
    }
}

fn training_plan(plan: &RunPlan) -> String {
    let tokens = plan.steps as u64 * plan.tokens_per_step as u64;
    let mut documents = format!("{}, and {} held out", plan.documents, plan.held_out);
    if plan.written > 0 {
        let _ = write!(documents, "; the teacher writes {} more", plan.written);
    }
    let mut pairs = vec![
        ("parameters", plan.parameters.to_string()),
        ("documents", documents),
        ("steps", format!("{} of {} tokens: {tokens} tokens", plan.steps, plan.tokens_per_step)),
    ];
    pairs.push(("memory", bytes(plan.memory)));
    if let Some(seconds) = plan.seconds_per_step {
        let minutes = seconds * plan.steps as f64 / 60.0;
        pairs.push(("time", format!("{minutes:.1} minutes, {:.0} ms per step", 1e3 * seconds)));
    }
    if let Some(step) = plan.continues {
        pairs.push(("continues", format!("after step {step}")));
    }
    facts(pairs)
}

fn training_report(report: &RunReport) -> String {
    let bits = |found: &HeldOutLoss| match found.bits_per_byte {
        Some(bytes) => format!("{:.4} bits per token, {bytes:.4} per byte", found.bits_per_token),
        None => format!("{:.4} bits per token", found.bits_per_token),
    };
    let ended = match report.ended {
        Ended::Early => ": evaluations did not get better",
        Ended::Interrupted => ": interrupted",
        Ended::Complete => "",
    };
    let mut pairs = vec![
        ("output", report.output.display().to_string()),
        ("steps", format!("{} of {}{ended}", report.steps, report.planned)),
        ("tokens", report.tokens.to_string()),
        ("time", format!("{:.1} minutes", report.seconds / 60.0)),
    ];
    pairs.extend(report.start.as_ref().map(|found| ("held out, at the start", bits(found))));
    let best = report.best.as_ref();
    pairs.extend(best.map(|found| ("held out, best", format!("{} after step {}", bits(found), found.step))));
    pairs.extend(report.teacher.as_ref().map(|found| ("held out, teacher", bits(found))));
    pairs.extend(report.ratio().map(|ratio| ("ratio to the teacher", format!("{ratio:.4}"))));
    pairs.extend(report.ranks.as_ref().map(|ranks| {
        let (sent, waited) = (bytes(ranks.sent_bytes), ranks.waiting_seconds);
        ("ranks", format!("{}: {sent} sent, {waited:.1} s waited in the mean", ranks.count))
    }));
    pairs.extend(report.notes.iter().map(|note| ("note", note.clone())));
    facts(pairs)
}

impl Show for QuantizeOutcome {
    fn text(&self) -> String {
        match self {
            Self::Model(model) => quantize_report(&model.report, model.verbose),
            Self::Plan(outcome) => {
                let mut layers = table(presets::NOTHING, 1, ["layer", "stored as"]);
                for l in &outcome.plan.layers {
                    layers.add_row([l.name.clone(), l.stored.to_string()]);
                }
                let pairs = [
                    ("written", outcome.output.clone()),
                    ("planned for", or_dash(outcome.plan.made_for.as_ref())),
                ];
                format!("{}\n{}", plain(layers), facts(pairs))
            }
        }
    }
}

/// The table of all layers.
fn quantized_layers(report: &QuantizeReport) -> String {
    let columns = ["layer", "shape", "stored as", "bits/weight", "zeros", "weight error", "output error"];
    let mut layers = table(presets::NOTHING, 3, columns);
    for l in &report.layers {
        let share = |error: Option<f64>| or_dash(error.map(|e| format!("{e:.4}")));
        layers.add_row([
            l.name.clone(),
            format!("{} x {}", l.rows, l.cols),
            l.stored.clone(),
            format!("{:.3}", l.bits_per_weight),
            or_dash(l.zeros.map(percent)),
            share(l.weight_error),
            share(l.output_error),
        ]);
    }
    plain(layers)
}

/// The verdict and the summary, and the table of layers if `verbose`.
fn quantize_report(report: &QuantizeReport, verbose: bool) -> String {
    let t = &report.ternary;
    let mut pairs = vec![
        ("written", report.output.clone()),
        ("planes", format!("{}, one scale per {}", report.planes, report.granularity)),
        ("method", report.method.clone()),
        (
            "calibration",
            format!("{} sequences, {} tokens", report.calibration_sequences, report.calibration_tokens),
        ),
        ("ternary layers", format!("{} of {}", t.layers, report.layers.len())),
        ("ternary bits per weight", format!("{:.3}", t.bits_per_weight)),
        ("ternary zeros", percent(t.zeros)),
        ("tensors", format!("{} before, {} after", bytes(report.input_bytes), bytes(report.output_bytes))),
        ("seconds", format!("{:.1}", report.seconds)),
    ];
    if let Some(e) = &report.evaluation {
        pairs.extend([
            ("measured on", format!("{} ({} tokens)", e.text, e.tokens)),
            (
                "perplexity",
                format!(
                    "{:.4} before, {:.4} after: {:.4}x, +- {:.4}",
                    e.perplexity_before, e.perplexity_after, e.ratio, e.ratio_error
                ),
            ),
            ("KL from the dense model", format!("{:.6} nats, +- {:.6}", e.kl, e.kl_error)),
            ("top-1 agreement", percent(e.top1_agreement)),
        ]);
    }
    if let Some(planning) = &report.planning {
        pairs.push(("planned for", planning.described()));
    }
    if let Some(reason) = &report.not_measured {
        pairs.push(("not measured", reason.clone()));
    }
    let verdict = report.verdict.as_ref().map(|verdict| format!("{}\n\n", verdict.sentence));
    let mut text = verdict.unwrap_or_default() + &facts(pairs);
    if verbose {
        text = format!("{text}\n{}", quantized_layers(report));
    }
    if !report.curve.is_empty() {
        let mut curve = table(presets::NOTHING, 1, ["setting", "bits/weight", "bytes", "ratio", "KL"]);
        for p in &report.curve {
            curve.add_row([
                p.setting.clone(),
                format!("{:.3}", p.bits_per_weight),
                p.bytes.to_string(),
                format!("{:.4}", p.ratio),
                format!("{:.6}", p.kl),
            ]);
        }
        text = format!("{text}\n{}", plain(curve));
    }
    for l in &report.layers {
        if let Some(reason) = &l.kept {
            text += &format!("kept: {}: {reason}\n", l.name);
        }
    }
    for note in &report.notes {
        text += &format!("note: {note}\n");
    }
    let out = &report.output;
    text + &format!(
        "\nwritten to {out}; details of every layer: {out}/report.html; try it: trike run {out} \"Once upon a time\"\n"
    )
}

impl Show for PerplexityOutcome {
    fn text(&self) -> String {
        let f = &self.figures;
        let mut pairs = vec![
            ("perplexity", format!("{:.4}", f.perplexity)),
            ("nats per token", format!("{:.4} +- {:.4}", f.nats, f.nats_error)),
            ("bits per byte", format!("{:.4}", f.bits_per_byte)),
            ("tokens", f.tokens.to_string()),
            ("bytes", f.bytes.to_string()),
            ("sequences", format!("{} ({})", f.sequences, self.split)),
            ("activations", self.activations.clone()),
            (
                "KV cache",
                format!(
                    "{}{}{}",
                    self.kv,
                    selected(self.keys, self.keys_top_k, self.prompt_keys),
                    limited(self.limit)
                ),
            ),
        ];
        if let Some(against) = &self.against {
            pairs.extend([
                ("base", against.base.model.clone()),
                ("perplexity of base", format!("{:.4}", against.base.figures.perplexity)),
                ("KL from base", format!("{:.6} nats, +- {:.6}", against.kl, against.kl_error)),
                ("perplexity ratio", format!("{:.4}, +- {:.4}", against.ratio, against.ratio_error)),
                ("top-1 agreement", percent(against.top1_agreement)),
            ]);
        }
        let mut text = facts(pairs);
        if let Some(against) = self.against.as_ref().filter(|against| !against.positions.is_empty()) {
            let header = ["positions", "tokens", "perplexity", "ratio", "KL from base"];
            let mut rows = table(presets::NOTHING, 1, header);
            for range in &against.positions {
                rows.add_row([
                    format!("{}-{}", range.first, range.last),
                    range.tokens.to_string(),
                    format!("{:.4}", range.perplexity),
                    format!("{:.4}", range.ratio),
                    format!("{:.6} nats, +- {:.6}", range.kl, range.kl_error),
                ]);
            }
            text += "\n";
            text += &plain(rows);
        }
        text
    }
}

impl Show for EvalOutcome {
    fn text(&self) -> String {
        let columns = ["task", "questions", "accuracy", "accuracy per byte", "chance", "too long"];
        let mut tasks = table(presets::NOTHING, 1, columns);
        let mean = self.mean.iter().map(|s| (format!("mean of {} tasks", self.tasks.len()), s));
        for (name, s) in self.tasks.iter().map(|t| (t.file.clone(), &t.score)).chain(mean) {
            let share = |p: f64, error: f64| format!("{:.1} +- {:.1} %", 100.0 * p, 100.0 * error);
            tasks.add_row([
                name,
                s.questions.to_string(),
                share(s.accuracy, s.accuracy_error),
                share(s.normalized, s.normalized_error),
                percent(s.chance),
                s.too_long.to_string(),
            ]);
        }
        let mut texts =
            table(presets::NOTHING, 2, ["text", "split", "tokens", "perplexity", "ratio", "KL from base"]);
        for t in &self.texts {
            let f = &t.figures;
            let against = t.against.as_ref();
            texts.add_row([
                t.file.clone(),
                t.split.to_owned(),
                f.tokens.to_string(),
                format!("{:.4} +- {:.4}", f.perplexity, f.perplexity * f.nats_error),
                or_dash(against.map(|a| format!("{:.4} +- {:.4}", a.ratio, a.ratio_error))),
                or_dash(against.map(|a| format!("{:.6} +- {:.6}", a.kl, a.kl_error))),
            ]);
        }
        let shown = [(self.tasks.is_empty(), tasks), (self.texts.is_empty(), texts)];
        let mut text: String =
            shown.into_iter().filter(|(empty, _)| !empty).map(|(_, table)| plain(table)).collect();
        text.extend(self.needle.as_ref().map(needle::text));
        text + &facts([("activations", self.activations.clone())])
    }
}

impl Show for LogitsOutcome {
    fn text(&self) -> String {
        format!("{}: f32 [{}, {}]\n", self.output, self.shape[0], self.shape[1])
    }
}

impl Show for BenchOutcome {
    fn text(&self) -> String {
        // Omit columns without information.
        let deep = self.report.rows.iter().any(|row| row.depth > 0);
        let many = self.report.rows.iter().any(|row| row.sequences > 1);
        let mut header =
            vec!["model", "test", "threads", "tok/s", "share of bandwidth", "share of int8 peak"];
        if many {
            header.insert(2, "sequences");
        }
        if deep {
            header.insert(2, "depth");
        }
        let mut rows = table(presets::ASCII_MARKDOWN, 2, header);
        for row in &self.report.rows {
            let mut cells = vec![
                self.model.name.clone(),
                format!("{} {}", row.kind, row.tokens),
                or_dash(row.threads),
                format!("{:.2} ± {:.2}", row.tokens_per_second, row.standard_deviation),
                or_dash(row.share_of_bandwidth.map(percent)),
                or_dash(row.share_of_int8_peak.map(percent)),
            ];
            if many {
                cells.insert(2, row.sequences.to_string());
            }
            if deep {
                cells.insert(2, row.depth.to_string());
            }
            rows.add_row(cells);
        }
        let mut text = format!("{rows}\n\n");
        let m = &self.model;
        let _ = write!(
            text,
            "{}, activations {}, KV cache {}{}; weights {} in memory",
            self.isa.unwrap_or(&self.backend),
            self.activations,
            self.kv,
            selected(self.keys, self.keys_top_k, self.prompt_keys),
            bytes(m.resident_bytes as u64)
        );
        if !m.layouts.is_empty() {
            let layouts: Vec<String> =
                m.layouts.iter().map(|(name, count)| format!("{count} {name}")).collect();
            let _ = write!(text, " ({})", layouts.join(", "));
        }
        if let (Some(encoding), Some(stored), Some(seconds)) = (m.encoding, m.stored_bytes, m.load_seconds) {
            let _ = write!(text, ", linear layers {} as {encoding}, built in {seconds:.1} s", bytes(stored));
        }
        if let Some(device) = &self.device {
            let _ = write!(text, ", peak device memory {}", bytes(device.used.peak_bytes));
            let _ = match device.used.memory_bytes {
                Some(all) => write!(text, " of {}", bytes(all)),
                None => Ok(()),
            };
            let _ = write!(text, ", {} reserved and unused", bytes(device.used.unused_bytes));
            for part in &device.devices {
                let _ = write!(text, "; {}: peak {}", part.name, bytes(part.used.peak_bytes));
            }
        }
        text.push('\n');
        if !self.tuned.is_empty() {
            let header = ["matrices", "tokens", "predicted", "us", "fastest", "us"];
            let mut rows = table(presets::ASCII_MARKDOWN, 3, header.to_vec());
            for row in &self.tuned {
                let add = if row.added { ", added" } else { "" };
                rows.add_row(vec![
                    format!("{} of {} x {}{add}", row.matrices, row.rows, row.cols),
                    row.tokens.to_string(),
                    or_dash(row.predicted.as_ref()),
                    or_dash(row.predicted_ns.map(|ns| format!("{:.1}", ns / 1e3))),
                    row.chosen.clone(),
                    format!("{:.1}", row.chosen_ns / 1e3),
                ]);
            }
            let _ = writeln!(text, "\n{rows}\n");
        }
        for c in &self.report.ceilings {
            let _ = writeln!(
                text,
                "ceilings with {} threads: {:.1} GB/s ({}), {:.1} int8 GMAC/s ({})",
                c.threads,
                c.bandwidth / 1e9,
                c.bandwidth_variant,
                c.int8_peak / 1e9,
                c.int8_variant
            );
        }
        text
    }
}

impl Show for Diagnosis {
    fn text(&self) -> String {
        let mut pairs = vec![
            ("version", self.version.to_owned()),
            ("CPU", or_dash(self.processor.as_ref())),
            ("instruction sets", self.isa_available.join(", ")),
            ("instruction set used", self.isa.to_owned()),
            ("threads", self.threads.to_string()),
            ("memory bandwidth", ceiling(&self.bandwidth, self.verbose)),
            ("int8 peak", ceiling(&self.int8_peak, self.verbose)),
            ("bundled model", or_dash(self.shipped_model.as_ref())),
        ];
        for device in &self.devices {
            let mut facts = vec![device.adapter.clone()];
            facts.extend(device.software.then(|| "software".to_owned()));
            facts.extend(device.memory.map(bytes));
            facts.extend(device.features.iter().map(|name| (*name).to_owned()));
            pairs.push(("device", format!("{}: {}", device.name, facts.join(", "))));
        }
        if self.devices.is_empty() {
            pairs.push(("device", "none supported by this build".to_owned()));
        }
        let set = self.environment.iter().map(|(name, value)| ("environment", format!("{name}={value}")));
        pairs.extend(set);
        facts(pairs)
    }
}

/// A peak rate; all variants if `verbose`.
fn ceiling(measured: &Measured, verbose: bool) -> String {
    let best = format!("{:.1} G{}", measured.best / 1e9, measured.unit.replace("bytes", "B"));
    if !verbose {
        return best;
    }
    let all: Vec<String> =
        measured.variants.iter().map(|(name, figure)| format!("{name} {:.1}", figure / 1e9)).collect();
    format!("{best} by {} ({})", measured.best_variant, all.join("; "))
}
