//! Quantities of bytes as Kubernetes writes them: `10Gi`, `500M`, `4096`.

const UNITS: [(&str, u64); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

/// Kubernetes' message for an invalid quantity.
pub(crate) const NO_QUANTITY: &str = "quantities must match the regular expression \
                                      '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// `None` when the text is no whole number with one of these units or none, or is too large.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    let found = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = found.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| number.parse::<u64>().ok()?.checked_mul(scale)).flatten()
}

/// As [`bytes()`], with a fraction if there is one (`1.5Gi`), rounded up, or with an exponent of ten (`2e9`).
#[must_use]
pub fn memory(text: &str) -> Option<u64> {
    if let Some((number, exponent)) = text.split_once(['e', 'E']).filter(|(_, rest)| !rest.is_empty() && *rest != "i") {
        return bytes(number)?.checked_mul(10_u64.checked_pow(exponent.parse().ok()?)?);
    }
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let Some((whole, part)) = number.split_once('.') else { return bytes(text) };
    let scale = bytes(&format!("1{unit}"))?;
    let all = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !all(part) {
        return None;
    }
    let tens = 10_u64.pow(u32::try_from(part.len()).ok()?);
    let fraction = u128::from(part.parse::<u64>().ok()?) * u128::from(scale);
    let fraction = u64::try_from(fraction.div_ceil(u128::from(tens))).ok()?;
    bytes(&format!("{whole}{unit}"))?.checked_add(fraction)
}

/// Processors as Kubernetes writes them, in thousandths: `2`, `0.5`, `250m`. Finer ones are rounded up.
#[must_use]
pub fn milli(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(number) = text.strip_suffix('m') {
        return digits(number).then(|| number.parse().ok()).flatten();
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if !digits(whole) || !digits(part) {
        return None;
    }
    let thousandths: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    let finer = u64::from(part.get(3..).is_some_and(|rest| rest.bytes().any(|digit| digit != b'0')));
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(thousandths + finer)
}

/// Whether the amount is below zero; `None` when the text is no quantity of Kubernetes', which has more forms than are
/// counted with here.
#[must_use]
pub fn is_negative(text: &str) -> Option<bool> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(end);
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    let is_exponent = || unit.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i32>().is_ok());
    let is_unit = ["", "n", "u", "m"].contains(&unit) || UNITS.iter().any(|(known, _)| *known == unit) || is_exponent();
    let is_zero = number.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    (is_number && is_unit).then(|| text.starts_with('-') && !is_zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_have_a_fraction() {
        for (text, wanted) in [
            ("64Mi", Some(64 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("0.1", Some(1)),
            ("1.5", Some(2)),
            ("1.", None),
            (".5Gi", None),
            ("1.5xi", None),
            ("2e9", Some(2_000_000_000)),
            ("2E3", Some(2000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("1Ei", Some(1 << 60)),
            ("1e99", None),
            ("e9", None),
            ("1e-3", None),
            ("1e", None),
            ("1.1234567890Gi", None),
            ("99999999.5Ti", None),
        ] {
            assert_eq!(memory(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn processors_are_read_in_thousandths() {
        for (text, wanted) in [
            ("2", Some(2000)),
            ("0.5", Some(500)),
            ("1.25", Some(1250)),
            ("0.0001", Some(1)),
            ("250m", Some(250)),
            ("m", None),
            ("", None),
            (".5", None),
            ("1.", None),
            ("-1", None),
            ("1e3", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(milli(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_kubernetes_takes_for_a_quantity_is_one() {
        for (text, wanted) in [
            ("1", Some(false)),
            ("-1", Some(true)),
            ("-0.0", Some(false)),
            ("+.5Gi", Some(false)),
            ("1.", Some(false)),
            ("100u", Some(false)),
            ("-1e3", Some(true)),
            ("1E-3", Some(false)),
            ("1E", Some(false)),
            ("", None),
            (".", None),
            ("-", None),
            ("--1", None),
            ("1.2.3", None),
            ("1e", None),
            ("1 Gi", None),
            ("1GiB", None),
            ("lots", None),
            ("1\u{b5}", None),
        ] {
            assert_eq!(is_negative(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64Mi", Some(64 << 20)),
            ("2k", Some(2000)),
            ("3G", Some(3_000_000_000)),
            ("1Ti", Some(1 << 40)),
            ("", None),
            ("Mi", None),
            ("-1", None),
            ("+1", None),
            ("1.5Gi", None),
            ("1 Mi", None),
            ("1mi", None),
            ("99999999Ti", None),
        ] {
            assert_eq!(bytes(text), wanted, "{text:?}");
        }
    }
}
