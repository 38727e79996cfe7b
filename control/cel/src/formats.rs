//! Named formats: `format.dns1123Label().validate(self.name)` returns the problems of a text, if any.

use support::{labels, names};

/// A format.
#[derive(Debug)]
pub struct NamedFormat {
    pub(crate) name: &'static str,
    /// The problem with a text; `None` if it is valid.
    pub(crate) validate: fn(&str) -> Option<String>,
}

/// The formats of Kubernetes 1.34.
static FORMATS: [NamedFormat; 13] = [
    NamedFormat { name: "dns1123Label", validate: label },
    NamedFormat { name: "dns1123Subdomain", validate: subdomain },
    NamedFormat { name: "dns1035Label", validate: label_1035 },
    NamedFormat { name: "qualifiedName", validate: labels::label_key_error },
    NamedFormat { name: "dns1123LabelPrefix", validate: |text| label(&prefix_as_name(text)) },
    NamedFormat { name: "dns1123SubdomainPrefix", validate: |text| subdomain(&prefix_as_name(text)) },
    NamedFormat { name: "dns1035LabelPrefix", validate: |text| label_1035(&prefix_as_name(text)) },
    NamedFormat { name: "labelValue", validate: labels::label_value_error },
    NamedFormat { name: "uri", validate: uri },
    NamedFormat { name: "uuid", validate: |text| unless(is_uuid(text), "does not match the UUID format") },
    NamedFormat { name: "byte", validate: |text| unless(is_base64(text), "invalid base64") },
    NamedFormat { name: "date", validate: |text| unless(is_date(text), "invalid date") },
    NamedFormat { name: "datetime", validate: |text| unless(is_moment(text), "invalid datetime") },
];

pub(crate) fn by_name(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

/// The prefix of functions about formats.
pub(crate) const NAMESPACE: &str = "format.";

/// The number of arguments of such a function; `None` if there is no function of that name.
pub(crate) fn argument_count(name: &str) -> Option<usize> {
    match name.strip_prefix(NAMESPACE)? {
        "named" => Some(1),
        name => by_name(name).map(|_| 0),
    }
}

/// Whether a text has the format of this name; an unknown format accepts every text.
pub fn is_of_format(name: &str, text: &str) -> bool {
    by_name(name).is_none_or(|format| (format.validate)(text).is_none())
}

fn unless(good: bool, why: &str) -> Option<String> {
    (!good).then(|| why.to_owned())
}

fn label(text: &str) -> Option<String> {
    (!names::is_dns1123_label(text)).then(|| names::label_error(text))
}

fn label_1035(text: &str) -> Option<String> {
    (!names::is_dns1035_label(text)).then(|| names::label_1035_error(text))
}

fn subdomain(text: &str) -> Option<String> {
    if text.len() > labels::NAME_CHARS_MAX {
        return Some(format!("must be no more than {} bytes", labels::NAME_CHARS_MAX));
    }
    unless(labels::is_subdomain(text), names::NOT_A_SUBDOMAIN)
}

/// The text as the beginning of a name: it may end with a dash, behind which something comes.
fn prefix_as_name(text: &str) -> String {
    match text.strip_suffix('-') {
        // One character less, as Kubernetes counts.
        Some(rest) if !rest.is_empty() => {
            let last = rest.chars().next_back().map_or(0, char::len_utf8);
            format!("{}a", &rest[..rest.len() - last])
        }
        _ => text.to_owned(),
    }
}

fn uri(text: &str) -> Option<String> {
    (!is_url(text)).then(|| format!("parse {text:?}: invalid URI for request"))
}

/// With a scheme and a host, or a path of its own.
pub(crate) fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>()
        .is_ok_and(|url| url.path().starts_with('/') && (url.scheme().is_some() == url.host().is_some()))
        && (text.starts_with('/') || text.contains("://"))
}

/// With or without dashes between its parts.
fn is_uuid(text: &str) -> bool {
    const PARTS: [usize; 5] = [8, 4, 4, 4, 12];
    let mut rest = text;
    for (place, digits) in PARTS.into_iter().enumerate() {
        if place > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, behind)) = rest.split_at_checked(digits) else { return false };
        if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        rest = behind;
    }
    rest.is_empty()
}

fn is_base64(text: &str) -> bool {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    !text.is_empty() && text.len().is_multiple_of(4) && plain
}

fn is_date(text: &str) -> bool {
    let shape = text.bytes().enumerate();
    let mut shape = shape.map(|(at, byte)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() });
    text.len() == 10 && shape.all(|fits| fits) && text.parse::<jiff::civil::Date>().is_ok()
}

/// A date, `T`, and a time with its zone.
fn is_moment(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let Some((date, time)) = text.split_once('t') else { return false };
    let Some((clock, zone)) = time.split_at_checked(8) else { return false };
    let in_bounds = |part: Option<&str>, most: u8| {
        part.is_some_and(|part| {
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            digits && part.parse::<u8>().is_ok_and(|number| number <= most)
        })
    };
    let mut parts = clock.split(':');
    let good = [23, 59, 59].into_iter().all(|most| in_bounds(parts.next(), most));
    let zone = zone.strip_prefix('.').map_or(zone, |part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
    let offset = || {
        let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
        Some(in_bounds(Some(hours), 99) && in_bounds(Some(minutes), 99))
    };
    good && parts.next().is_none() && is_date(date) && (zone == "z" || offset() == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-20: each format takes what Kubernetes takes.
    #[test]
    fn invalid_format_has_reason() {
        for (name, good, bad) in [
            ("dns1123Label", &["a-1"][..], &["A", "a.b", "-a", ""][..]),
            ("dns1123Subdomain", &["a.b-1.c"], &["a..b", "A"]),
            ("dns1035Label", &["a-1"], &["1a"]),
            ("qualifiedName", &["a/b", "B"], &["a/b/c", "/b"]),
            ("dns1123LabelPrefix", &["a-", "a"], &["-", "AA-", "üü-"]),
            ("dns1123SubdomainPrefix", &["a.b-"], &["AA-"]),
            ("dns1035LabelPrefix", &["ab-"], &["1-b"]),
            ("labelValue", &["", "a_B"], &["-"]),
            ("uri", &["http://a/b", "/b"], &["a b", ""]),
            (
                "uuid",
                &["123e4567-e89b-12d3-a456-426614174000", "123E4567e89b12d3a456426614174000"],
                &["123e4567", "123e4567--e89b-12d3-a456-426614174000", "ü23e4567e89b12d3a45642661417400"],
            ),
            ("byte", &["aGVsbG8=", "aGVs"], &["aGVsbG8", "", "a==="]),
            ("date", &["2021-01-31"], &["2021-02-30", "20210101", "2021-1-1"]),
            (
                "datetime",
                &["2021-01-01T00:00:00Z", "2021-01-01t23:59:59.5+01:00"],
                &["2021-01-01", "2021-01-01T24:00:00Z", "2021-01-01T00:00:00", "2021-01-01Tü"],
            ),
        ] {
            let format = by_name(name).unwrap();
            for text in good {
                assert_eq!((format.validate)(text), None, "{name} {text}");
            }
            for text in bad {
                assert!((format.validate)(text).is_some(), "{name} {text}");
            }
        }
        assert!(by_name("email").is_none());
    }
}
