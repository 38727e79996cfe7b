//! Numbers for people.

use std::time::Duration;

/// With separated thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate: three digits, or whole with separated thousands.
pub(super) fn rate(rate: f64) -> String {
    if rate >= 100.0 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        return grouped(rate.round() as u64);
    }
    significant(rate)
}

/// Three significant digits.
pub(super) fn significant(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// In the unit in which it is at least one.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if time.is_zero() => "0".to_owned(),
        _ if seconds < 1e-3 => format!("{} us", significant(seconds * 1e6)),
        _ if seconds < 1.0 => format!("{} ms", significant(seconds * 1e3)),
        _ => format!("{} s", significant(seconds)),
    }
}

/// In bytes, or the binary unit in which it is at least one.
pub(super) fn bytes(count: f64) -> String {
    let (mut size, mut units) = (count, ["B", "KiB", "MiB", "GiB", "TiB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    format!("{} {unit}", if unit == "B" { format!("{size:.0}") } else { significant(size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_readable() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        for (number, text) in [(0.0, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (0.1234, "0.123"), (12_345.6, "12,346")]
        {
            assert_eq!(rate(number), text);
        }
        for (micros, text) in [(0, "0"), (12, "12.0 us"), (1_230, "1.23 ms"), (45_600_000, "45.6 s")] {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        }
        for (count, text) in
            [(0.0, "0 B"), (1_023.0, "1023 B"), (1_536.0, "1.50 KiB"), (1e13, "9.09 TiB"), (1e18, "909495 TiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }
}
