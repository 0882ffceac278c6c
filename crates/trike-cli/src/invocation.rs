//! The command line and the date, for reports.

use std::{
    ffi::OsString,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

/// The command line of this process.
static ARGS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Stores the command line, once.
pub(crate) fn remember(args: Vec<OsString>) {
    // Reports of the first command of a process must not show a later one.
    let _ = ARGS.set(args);
}

/// The command line, quoted for a shell, with the program's name instead of its path.
pub(crate) fn command_line() -> String {
    let args = ARGS.get().into_iter().flatten().skip(1);
    let quoted = args.map(|arg| quoted(&arg.to_string_lossy()));
    std::iter::once("trike".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

/// The date and time, in UTC; `None` if the clock is before 1970.
pub(crate) fn date() -> Option<String> {
    Some(utc(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs()))
}

fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,./:@%".contains(c);
    match !arg.is_empty() && arg.chars().all(plain) {
        true => arg.to_owned(),
        false => format!("'{}'", arg.replace('\'', r"'\''")),
    }
}

/// The day of a time in seconds since 1970, in UTC.
pub(crate) fn day(seconds: u64) -> String {
    let mut time = utc(seconds);
    time.truncate(10);
    time
}

/// Seconds since 1970 as `2026-11-23 07:40 UTC`.
fn utc(seconds: u64) -> String {
    let (day, minute) = (seconds / 86_400, seconds % 86_400 / 60);
    // Years starting in March, so that the leap day is the last one: Howard Hinnant's `civil_from_days`.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02} {:02}:{:02} UTC", minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_340, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_709_164_800, "2024-02-29 00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59 UTC"),
            (1_798_761_600, "2027-01-01 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn arguments_survive_a_shell() {
        for (arg, text) in [
            ("--planes", "--planes"),
            ("a/b.txt", "a/b.txt"),
            ("", "''"),
            ("my model", "'my model'"),
            ("it's", r"'it'\''s'"),
            ("layers.0.*", "'layers.0.*'"),
        ] {
            assert_eq!(quoted(arg), text);
        }
    }
}
