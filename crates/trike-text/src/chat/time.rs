//! Dates for `strftime_now`.

use std::time::SystemTime;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A time in UTC, split into fields.
struct Moment {
    year: i64,
    /// From 0.
    month: usize,
    /// From 1.
    day: i64,
    /// From 1.
    day_of_year: i64,
    /// Sunday is 0.
    weekday: usize,
    /// Second of the day.
    second: i64,
    microsecond: u32,
    /// Since 1970.
    seconds: i64,
}

impl Moment {
    fn new(time: SystemTime) -> Self {
        let (seconds, microsecond) = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => (after.as_secs() as i64, after.subsec_micros()),
            Err(before) => (-(before.duration().as_secs() as i64), 0),
        };
        // Clamp to the years 1 to 9999, so that the arithmetic below cannot overflow.
        let seconds = seconds.clamp(-62_135_596_800, 253_402_300_799);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let mut year = 1970 + days.div_euclid(366);
        let start = |year: i64| 365 * (year - 1970) + leaps_before(year) - leaps_before(1970);
        while days >= start(year + 1) {
            year += 1;
        }
        while days < start(year) {
            year -= 1;
        }
        let day_of_year = days - start(year);
        let mut day = day_of_year;
        let mut month = 0;
        for length in [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        let weekday = (days + 4).rem_euclid(7) as usize;
        Self {
            year,
            month,
            day: day + 1,
            day_of_year: day_of_year + 1,
            weekday,
            second,
            microsecond,
            seconds,
        }
    }
}

fn leaps_before(year: i64) -> i64 {
    let y = year - 1;
    y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400)
}

/// The week of the year, where weeks start on day `start` (0 for Sunday) and the first complete one is week 1.
fn week(moment: &Moment, start: usize) -> i64 {
    (moment.day_of_year + 6 - ((moment.weekday + 7 - start) % 7) as i64) / 7
}

/// The year and the week of ISO 8601: weeks start on Monday, and belong to the year of their Thursday.
fn iso_week(moment: &Moment) -> (i64, i64) {
    let thursday = moment.day_of_year + 3 - ((moment.weekday + 6) % 7) as i64;
    let days = |year: i64| 365 + leaps_before(year + 1) - leaps_before(year);
    if thursday < 1 {
        (moment.year - 1, (thursday + days(moment.year - 1) + 6) / 7)
    } else if thursday > days(moment.year) {
        (moment.year + 1, 1)
    } else {
        (moment.year, (thursday + 6) / 7)
    }
}

/// Formats `time` in UTC by C's directives with English names. The error is an unsupported directive.
///
/// As in Python, a naive time has no zone name and no offset.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    let moment = Moment::new(time);
    let (hour, minute, second) = (moment.second / 3600, moment.second / 60 % 60, moment.second % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = rest.next();
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        let number = |value: i64, width: usize| {
            if padded { format!("{value:0width$}") } else { value.to_string() }
        };
        let spaced = |value: i64| if padded { format!("{value:2}") } else { value.to_string() };
        text.push_str(&match directive {
            Some('Y') => number(moment.year, 4),
            Some('y') => number(moment.year.rem_euclid(100), 2),
            Some('C') => number(moment.year / 100, 2),
            Some('m') => number(moment.month as i64 + 1, 2),
            Some('d') => number(moment.day, 2),
            Some('e') => spaced(moment.day),
            Some('j') => number(moment.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('k') => spaced(hour),
            Some('l') => spaced(hour12),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('f') => format!("{:06}", moment.microsecond),
            Some('s') => moment.seconds.to_string(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('P') => if hour < 12 { "am" } else { "pm" }.to_owned(),
            Some('B') => MONTHS[moment.month].to_owned(),
            Some('b' | 'h') => MONTHS[moment.month][..3].to_owned(),
            Some('A') => DAYS[moment.weekday].to_owned(),
            Some('a') => DAYS[moment.weekday][..3].to_owned(),
            Some('w') => moment.weekday.to_string(),
            Some('u') => ((moment.weekday + 6) % 7 + 1).to_string(),
            Some('U') => number(week(&moment, 0), 2),
            Some('W') => number(week(&moment, 1), 2),
            Some('V') => number(iso_week(&moment).1, 2),
            Some('G') => number(iso_week(&moment).0, 4),
            Some('g') => number(iso_week(&moment).0.rem_euclid(100), 2),
            Some('F') => strftime(time, "%Y-%m-%d")?,
            Some('T' | 'X') => strftime(time, "%H:%M:%S")?,
            Some('R') => strftime(time, "%H:%M")?,
            Some('D' | 'x') => strftime(time, "%m/%d/%y")?,
            Some('r') => strftime(time, "%I:%M:%S %p")?,
            Some('c') => strftime(time, "%a %b %e %H:%M:%S %Y")?,
            Some('Z' | 'z') => String::new(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(format!("%{other}")),
            None => return Err("% at the end".to_owned()),
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_moments() {
        let all = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %y %I %p %-d %e %%";
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 Thu Thursday Jan January 001 70 12 AM 1  1 %"),
            (951_782_400, "2000-02-29 00:00:00 Tue Tuesday Feb February 060 00 12 AM 29 29 %"),
            (1_735_689_599, "2024-12-31 23:59:59 Tue Tuesday Dec December 366 24 11 PM 31 31 %"),
            (1_735_689_600, "2025-01-01 00:00:00 Wed Wednesday Jan January 001 25 12 AM 1  1 %"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon Monday Mar March 060 00 12 AM 1  1 %"),
        ] {
            assert_eq!(strftime(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), all).unwrap(), text);
        }
        for (seconds, text) in [
            (0, "00 00 01 1970 70 4 4 19"),
            (951_782_400, "09 09 09 2000 00 2 2 20"),
            (1_735_689_599, "52 53 01 2025 25 2 2 20"),
            (1_735_689_600, "00 00 01 2025 25 3 3 20"),
            (1_609_459_200, "00 00 53 2020 20 5 5 20"),
            (4_107_542_400, "09 09 09 2100 00 1 1 21"),
        ] {
            let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime(moment, "%U %W %V %G %g %u %w %C").unwrap(), text);
        }
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(strftime(before, "%F %T").unwrap(), "1969-12-31 23:59:59");
        assert_eq!(strftime(before, "%Q").unwrap_err(), "%Q");
        assert!(strftime(before, "%").is_err());
    }
}
