//! Amounts of bytes as Kubernetes writes them: `10Gi`, `500M`, `4096`.

const UNITS: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// `None` when the text is no whole number with one of these units or none, or is too large.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    let found = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = found.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| number.parse::<u64>().ok()?.checked_mul(scale)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

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
