//! Durations as text: ISO 8601 durations (`PT0.2S`, `P1D`) in delivery options, and the Go
//! notation (`60s`, `1h30m`) in serving's annotations.

use std::time::Duration;

use jiff::fmt::temporal::SpanParser;

/// A year and a month have no fixed length; the Gregorian means are close enough for a back-off.
const YEAR_SECONDS: f64 = 31_556_952.0;
const MONTH_SECONDS: f64 = YEAR_SECONDS / 12.0;
const WEEK_SECONDS: f64 = 7.0 * DAY_SECONDS;
const DAY_SECONDS: f64 = 86_400.0;
/// Longest accepted duration: more than any retry should wait, and far from every overflow.
const PERIOD_SECONDS_MAX: f64 = 100.0 * YEAR_SECONDS;
/// Digits before and after the point of a number: more than any duration has, and far from every overflow.
const DIGITS_MAX: usize = 18;

/// Parses an ISO 8601 duration; `None` if the text is invalid, negative or absurdly long.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let seconds = match fraction_of_date(text) {
        Some(("P", seconds)) => seconds,
        Some((before, seconds)) => parse_integer(before)? + seconds,
        None => parse_integer(text)?,
    };
    if !(0.0..=PERIOD_SECONDS_MAX).contains(&seconds) {
        return None;
    }
    // Rounded, because 0.2 s is no binary fraction and should still be 200 ms.
    Some(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// A last component of the date with a fraction, in seconds, and what is before it. The reader of spans takes
/// fractions of times of the day only.
fn fraction_of_date(text: &str) -> Option<(&str, f64)> {
    let unit = match text.chars().last()? {
        'Y' | 'y' => YEAR_SECONDS,
        'M' | 'm' => MONTH_SECONDS,
        'W' | 'w' => WEEK_SECONDS,
        'D' | 'd' => DAY_SECONDS,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    let begin = number.rfind(|c: char| c.is_ascii_alphabetic())? + 1;
    let (before, number) = number.split_at(begin);
    let (whole, part) = number.split_once(['.', ','])?;
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || before.contains(['T', 't']) {
        return None;
    }
    Some((before, format!("{whole}.{part}").parse::<f64>().ok()? * unit))
}

fn parse_integer(text: &str) -> Option<f64> {
    let span = SpanParser::new().parse_span(text).ok()?;
    let seconds = f64::from(span.get_years()) * YEAR_SECONDS
        + f64::from(span.get_months()) * MONTH_SECONDS
        + f64::from(span.get_weeks()) * WEEK_SECONDS
        + f64::from(span.get_days()) * DAY_SECONDS
        + f64::from(span.get_hours()) * 3_600.0
        + span.get_minutes() as f64 * 60.0
        + span.get_seconds() as f64
        + span.get_milliseconds() as f64 / 1e3
        + span.get_microseconds() as f64 / 1e6
        + span.get_nanoseconds() as f64 / 1e9;
    Some(seconds)
}

/// Parses a duration in Go's notation; `None` if it is invalid, negative or absurdly long.
#[must_use]
pub fn parse_go(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanoseconds = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, unit_at) = rest.split_at(digits);
        let unit_end = unit_at.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit_at.len());
        let (unit, behind) = unit_at.split_at(unit_end);
        nanoseconds += times(number, unit_nanoseconds(unit)?)?;
        rest = behind;
    }
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).ok()?;
    if text.is_empty() || seconds as f64 > PERIOD_SECONDS_MAX {
        return None;
    }
    Some(Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
}

fn unit_nanoseconds(unit: &str) -> Option<u128> {
    Some(match unit {
        "h" => 3_600_000_000_000,
        "m" => 60_000_000_000,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" | "µs" => 1_000,
        "ns" => 1,
        _ => return None,
    })
}

/// A number, with or without a point, times `unit`. Exact: as doubles, 2,169 hours came back a nanosecond longer when
/// they were serialized.
fn times(number: &str, unit: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') || whole.len() > DIGITS_MAX {
        return None;
    }
    // What is after the last digit that counts is less than a nanosecond.
    let part = &part[..part.len().min(DIGITS_MAX)];
    let read = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let tens = 10_u128.pow(u32::try_from(part.len()).ok()?);
    Some(read(whole)? * unit + read(part)? * unit / tens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EV-OBJ-48: `PT0.5S` is taken, `1s` is not.
    #[test]
    fn only_iso_8601_periods_are_taken() {
        for (text, millis) in [("PT0.5S", 500), ("PT0.2S", 200), ("PT1M", 60_000), ("P1DT1H", 90_000_000), ("PT0S", 0)]
        {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["1s", "", "PT", "5", "-PT1S", "P9999Y", "PT1X"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    /// EV-OBJ-48: ISO 8601 lets the lowest component have a fraction, whichever that is.
    #[test]
    fn the_last_part_of_a_period_may_have_a_fraction() {
        for (text, seconds) in [
            ("P0.5D", 43_200),
            ("P0,5D", 43_200),
            ("P1.5W", 907_200),
            ("P1W0.5D", 648_000),
            ("PT0.5M", 30),
            ("PT1.5H", 5_400),
            ("P0.5Y", 15_778_476),
        ] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["P0.5DT1H", "P1.5W1D", "P.D", "P0.D", "P.5D", "P0.5", "0.5D", "-P0.5D", "P0.5.5D", "P9999.5Y"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    /// As doubles they came back a nanosecond longer.
    #[test]
    fn go_durations_are_exact() {
        for (text, seconds) in [("130130m", 7_807_800), ("7807800000000000ns", 7_807_800), ("2169.5h", 7_810_200)] {
            assert_eq!(parse_go(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        let tenth = Some(Duration::from_nanos(100));
        assert_eq!((parse_go("0.0000001s"), parse_go(".1us"), parse_go("0.1us")), (tenth, tenth, tenth));
        assert_eq!(parse_go("0.9999999999999999999999ns"), Some(Duration::ZERO));
        for text in [".s", "..1s", "99999999999999999999s", "999999999999999999h"] {
            assert_eq!(parse_go(text), None, "{text}");
        }
    }

    #[test]
    fn go_durations_add_up_their_parts() {
        for (text, millis) in [("60s", 60_000), ("1h30m", 5_400_000), ("0", 0), ("1.5s", 1_500), ("250ms", 250)] {
            assert_eq!(parse_go(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "60", "s", "-1s", "1d", "1.2.3s", "s1", "9e99s", "é"] {
            assert_eq!(parse_go(text), None, "{text}");
        }
    }
}
