//! The report as tables.

use trike_bench::{Align, Table, median, percent};

use super::{Check, Exchange, Measured, Place, Prediction, Probe, Report, Scaling};

/// The tables of the report, in Markdown.
#[must_use]
pub fn tables(report: &Report) -> String {
    let Measured { machine, software, date, load, rounds, .. } = &report.measured;
    let mut text = format!(
        "{}, {} cores, {}, {}; Trike {} at {}{}; {}; load averages {:.1} before and {:.1} after: {}.\n",
        machine.cpu,
        machine.cores,
        machine.isa,
        machine.os,
        software.version,
        software.commit,
        if software.modified { " with changes" } else { "" },
        date,
        load[0],
        load[1],
        if load.iter().any(|load| *load > 0.5) { "other programs ran" } else { "nothing else ran" },
    );
    text += &format!("Medians of {rounds} rounds in which all settings take turns, one thread per rank.\n");
    for scaling in [Scaling::Strong, Scaling::Weak] {
        let name = match scaling {
            Scaling::Strong => "Strong scaling: all ranks share the tokens of a step",
            Scaling::Weak => "Weak scaling: each rank has the same tokens in a step",
        };
        text += &format!("\n{name}\n\n{}", check_table(report, scaling));
    }
    text += &format!("\n{}", constants(report));
    text += &format!("\n{}", sums_table(report));
    for model in models(report) {
        text += &format!(
            "\nPredicted: {model}, one rank per machine, seconds per step and efficiency\n\n{}",
            prediction_table(report, model)
        );
    }
    text
}

fn check_table(report: &Report, scaling: Scaling) -> String {
    let columns = [
        "exchange",
        "ranks",
        "tokens per rank",
        "ms per step",
        "predicted",
        "error",
        "speed",
        "waiting",
        "processor ms",
        "predicted",
        "error",
        "messages",
        "bytes",
        "predicted",
    ];
    let columns = columns.map(|name| (name, if name == "exchange" { Align::Left } else { Align::Right }));
    let mut table = Table::new(&columns);
    let of_scaling = || report.checks.iter().filter(|check| check.setting.scaling == scaling);
    for check in of_scaling() {
        let Check { setting, measured, .. } = check;
        let one = of_scaling().find(|one| one.setting.exchange == setting.exchange && one.setting.ranks == 1);
        let speed = one.map_or("-".to_owned(), |one| {
            let tokens = setting.tokens() as f64 / one.setting.tokens() as f64;
            format!("{:.2}", tokens * one.measured.seconds / measured.seconds)
        });
        table.row([
            setting.exchange.name().to_owned(),
            setting.ranks.to_string(),
            setting.tokens_per_rank().to_string(),
            ms(measured.seconds),
            ms(check.seconds),
            signed(check.error()),
            speed,
            percent(measured.waiting_seconds / measured.seconds),
            ms(measured.processor_seconds),
            ms(check.processor_seconds),
            signed(check.processor_error()),
            format!("{:.1}", measured.messages),
            grouped(measured.bytes),
            grouped(check.bytes),
        ]);
    }
    table.to_string()
}

/// The numbers of the model.
fn constants(report: &Report) -> String {
    let Report { model, measured: Measured { codecs, mean, .. }, .. } = report;
    let mut table = Table::new(&[("number of the model", Align::Left), ("measured", Align::Right)]);
    let mut row = |name: &str, number: String| table.row([name.to_owned(), number]);
    row("alpha, us per message", format!("{:.1}", 1e6 * model.alpha));
    row("beta, ns per byte", format!("{:.2}", 1e9 * model.beta));
    row("token, us", format!("{:.0}", 1e6 * model.token));
    for (exchange, fixed) in &model.fixed {
        row(&format!("fixed, ms, {}", exchange.name()), ms(*fixed));
    }
    row("of which exact ranks divide, ms", ms(model.divided));
    row("cores that other programs left", format!("{:.2}", report.available_cores));
    row("sum of one rank alone, ns per weight", format!("{:.1}", 1e9 * mean));
    for (exchange, codec) in codecs {
        let name = exchange.name();
        row(&format!("writing a message, ns per weight, {name}"), format!("{:.1}", 1e9 * codec.encode));
        row(&format!("reading a message, ns per weight, {name}"), format!("{:.1}", 1e9 * codec.decode));
    }
    table.to_string()
}

/// Sums of vectors without training, as a check of the time of messages alone.
fn sums_table(report: &Report) -> String {
    let columns =
        ["weights added up", "ranks", "ms, median", "ms, first decile", "predicted", "error, of the decile"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    let mut kinds: Vec<(u64, usize)> =
        report.measured.probes.iter().filter_map(|probe| Some((probe.sum_elements?, probe.ranks))).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for (elements, ranks) in kinds {
        let of = |part: fn(&Probe) -> f64| {
            let probes = report.measured.probes.iter();
            let these = probes.filter(|probe| probe.sum_elements == Some(elements) && probe.ranks == ranks);
            median(&these.map(part).collect::<Vec<_>>())
        };
        let Some((measured, fast)) = of(|probe| probe.seconds).zip(of(|probe| probe.fast)) else { continue };
        let volume = Exchange::Exact.volume(elements, ranks, None);
        let place = Place { ranks, threads: 1, cores: report.measured.machine.cores as f64 };
        let busy = report.measured.mean * elements as f64
            + report.model.alpha * volume.messages as f64
            + report.model.beta * volume.bytes as f64;
        let predicted = busy * place.slowdown();
        table.row([
            grouped(elements as f64),
            ranks.to_string(),
            ms(measured),
            ms(fast),
            ms(predicted),
            signed(predicted / fast - 1.0),
        ]);
    }
    table.to_string()
}

/// The models of the predictions, in their order.
fn models(report: &Report) -> Vec<&str> {
    let mut all: Vec<&str> = report.predictions.iter().map(|one| one.model.as_str()).collect();
    all.dedup();
    all
}

fn prediction_table(report: &Report, model: &str) -> String {
    let all: Vec<&Prediction> = report.predictions.iter().filter(|one| one.model == model).collect();
    let ranks: Vec<String> =
        report.assumed.ranks.iter().map(|ranks| format!("{} ranks", grouped(*ranks as f64))).collect();
    let mut columns = vec![("exchange", Align::Left), ("Gbit/s", Align::Right)];
    columns.extend(ranks.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for row in all.chunk_by(|a, b| a.exchange == b.exchange && a.bits_per_second == b.bits_per_second) {
        let cells = row.iter().map(|one| format!("{} ({})", seconds(one.seconds), percent(one.efficiency)));
        let head = [row[0].exchange.clone(), format!("{}", row[0].bits_per_second / 1e9)];
        table.row(head.into_iter().chain(cells));
    }
    table.to_string()
}

fn ms(seconds: f64) -> String {
    format!("{:.1}", 1e3 * seconds)
}

/// Three digits.
fn seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.1 => format!("{:.1} ms", 1e3 * seconds),
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < 100.0 => format!("{seconds:.1} s"),
        _ => format!("{} s", grouped(seconds)),
    }
}

fn signed(share: f64) -> String {
    format!("{:+.0} %", 100.0 * share)
}

/// A whole number with commas.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([12.0, 1234.4, 19_999_999.6].map(grouped), ["12", "1,234", "20,000,000"]);
        assert_eq!([0.0123, 1.234, 12.34, 1234.0].map(seconds), ["12.3 ms", "1.23 s", "12.3 s", "1,234 s"]);
        assert_eq!([0.051, -0.2].map(signed), ["+5 %", "-20 %"]);
    }
}
