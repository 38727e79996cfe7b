//! `format` in a schema: a constraint on a text or a number of a custom kind besides its type.
//!
//! A format that Kubernetes does not know has no effect there, nor here. Of the known formats, ISBN and
//! credit card numbers and colors are not checked: no kind of a cluster has them.

use std::net::IpAddr;

use serde_json::Value;

use crate::duration;
use support::names;

/// A host's name, and one label of it; the figures of DNS.
const HOSTNAME_BYTES_MAX: usize = 255;
const LABEL_CHARS_MAX: usize = 63;

/// The format of the schema that `text` is not of.
pub(super) fn mismatched_format<'a>(schema: &'a Value, text: &str) -> Option<&'a str> {
    let format = schema["format"].as_str().filter(|_| matches!(schema["type"].as_str(), None | Some("string")))?;
    let good = match format.replace('-', "").as_str() {
        known @ ("byte" | "date" | "datetime" | "uri" | "uuid") => cel::is_of_format(known, text),
        variant @ ("uuid3" | "uuid4" | "uuid5") => is_uuid_of(variant, text),
        "duration" => is_duration(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.contains('.') && address(text).is_some(),
        "ipv6" => text.contains(':') && address(text).is_some(),
        "cidr" => is_range(text),
        "mac" => is_mac(text),
        "k8sshortname" => names::is_dns1123_label(text),
        "k8slongname" => names::is_dns_subdomain(text),
        _ => true,
    };
    (!good).then_some(format)
}

/// Whether a number fits into the format of its schema.
pub(super) fn number_matches(schema: &Value, number: f64) -> bool {
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("integer"), Some("int32")) => (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number),
        (Some("number"), Some("float")) => number.abs() <= f64::from(f32::MAX),
        _ => true,
    }
}

/// Versions 4 and 5 have a variant, too.
fn is_uuid_of(variant: &str, text: &str) -> bool {
    let digits = text.replace('-', "");
    let digit = |at: usize| digits.as_bytes().get(at).map(u8::to_ascii_lowercase);
    let version = variant.bytes().next_back();
    let has_variant = digit(16).is_some_and(|digit| b"89ab".contains(&digit));
    cel::is_of_format("uuid", text) && digit(12) == version && (variant == "uuid3" || has_variant)
}

/// Go's, or numbers with the names of units somewhere, as Scala's.
fn is_duration(text: &str) -> bool {
    /// Each also stands for what begins with it, if it has more than two letters.
    const UNITS: [&str; 19] = [
        "ns", "nano", "us", "µs", "micro", "ms", "milli", "s", "sec", "m", "min", "h", "hr", "hour", "d", "day", "w",
        "wk", "week",
    ];
    let is_unit = |word: &str| {
        let word = word.to_lowercase();
        UNITS.iter().any(|unit| word == *unit || (unit.len() > 2 && unit.is_ascii() && word.starts_with(unit)))
    };
    let is_word = |c: char| c.is_ascii_alphabetic() || c == 'µ';
    let mut words = text.split(|c: char| c.is_ascii_digit()).skip(1).map(str::trim_start);
    let named = words.any(|word| is_unit(word.split(|c| !is_word(c)).next().unwrap_or("")));
    duration::parse_go(text).is_some() || named
}

/// `a@b`, or `A Name <a@b>`.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = text.strip_suffix('>').and_then(|text| text.rsplit_once('<')).map_or(text, |(_, address)| address);
    let plain = |c: char| !c.is_whitespace() && !"()<>,;:\\[]".contains(c);
    match address.rsplit_once('@') {
        Some((user, host)) if user.starts_with('"') && user.len() > 2 => user.ends_with('"') && !host.is_empty(),
        Some((user, host)) => {
            let word = |text: &str| text.split('.').all(|part| !part.is_empty() && part.chars().all(plain));
            word(user) && !user.contains('@') && (word(host) || host.starts_with('['))
        }
        None => false,
    }
}

/// One word, which may have a dash behind its first letter; or labels with dots between, of which the last is letters.
fn is_hostname(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_digit() || c.is_alphabetic() || (!c.is_ascii() && !c.is_control());
    if text.len() > HOSTNAME_BYTES_MAX {
        return false;
    }
    let Some((front, last)) = text.rsplit_once('.') else {
        let mut chars = text.chars();
        let first = chars.next().is_some_and(plain);
        let rest = chars.as_str();
        return first && rest.strip_prefix('-').unwrap_or(rest).chars().all(plain);
    };
    let label = |label: &str| {
        label.len() <= LABEL_CHARS_MAX
            && label.starts_with(plain)
            && label.ends_with(plain)
            && label.chars().all(|c| plain(c) || c == '-')
    };
    let top = (2..=LABEL_CHARS_MAX).contains(&last.chars().count()) && last.chars().all(char::is_alphabetic);
    top && front.split('.').all(label)
}

/// An address; in its decimal parts, zeros may be in front.
fn address(text: &str) -> Option<IpAddr> {
    let bare = |part: &str| {
        let rest = part.trim_start_matches('0');
        if rest.is_empty() && !part.is_empty() { "0".to_owned() } else { rest.to_owned() }
    };
    if text.contains(':') {
        return text.parse().ok();
    }
    text.split('.').map(bare).collect::<Vec<_>>().join(".").parse().ok()
}

fn is_range(text: &str) -> bool {
    let Some((start, bits)) = text.split_once('/') else { return false };
    let Some(start) = address(start) else { return false };
    let most = if start.is_ipv4() { 32 } else { 128 };
    let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    digits && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// Six, eight or twenty bytes: `00:1b:44:11:3a:b7`, `00-1b-…`, `001b.4411.3ab7`.
fn is_mac(text: &str) -> bool {
    [(':', 2), ('-', 2), ('.', 4)].into_iter().any(|(between, digits)| {
        let parts: Vec<&str> = text.split(between).collect();
        let whole = |part: &&str| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        matches!(parts.len() * digits, 12 | 16 | 40) && parts.iter().all(whole)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// APP-36: the formats of Kubernetes hold, and others mean nothing.
    #[test]
    fn a_text_is_of_the_format_that_its_schema_names() {
        for (format, good, bad) in [
            ("date-time", &["2026-01-01T00:00:00Z"][..], &["x", "2026-01-01", ""][..]),
            ("datetime", &["2026-01-01T00:00:00.5+01:00"], &["now"]),
            ("date", &["2026-01-31"], &["2026-13-01"]),
            ("duration", &["5m", "1h30m", "22 ns", "3 days", "1.5s", "0"], &["x", "5", "5 x", ""]),
            ("byte", &["aGVsbG8="], &["!!"]),
            ("uri", &["http://a/b", "/b"], &["::", "a b"]),
            ("email", &["a@b.c", "An A <a@b>", "\"a b\"@c"], &["a", "@b", "a@", "a b@c", "a@b@c", "a..b@c"]),
            ("hostname", &["localhost", "a-b.example.com", "x-y", "1.example.com"], &["-a", "a_b", "10.0.0.1", ""]),
            ("ipv4", &["1.2.3.4", "01.2.3.4"], &["1.2.3", "::1", "1.2.3.256"]),
            ("ipv6", &["::1", "fe80::1"], &["1.2.3.4", "x:"]),
            ("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8"]),
            ("mac", &["00:1b:44:11:3a:b7", "00-1b-44-11-3a-b7", "001b.4411.3ab7"], &["00:1b", "001b44113ab7"]),
            ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["x"]),
            ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]),
            ("uuid3", &["123e4567-e89b-32d3-0456-426614174000"], &["123e4567-e89b-42d3-a456-426614174000"]),
            ("k8s-short-name", &["a-b"], &["A", "a.b"]),
            ("k8s-long-name", &["a.b"], &["A"]),
            ("int-or-string", &["anything"], &[]),
            ("password", &["anything"], &[]),
        ] {
            let schema = json!({ "type": "string", "format": format });
            for text in good {
                assert_eq!(mismatched_format(&schema, text), None, "{format} {text}");
            }
            for text in bad {
                assert_eq!(mismatched_format(&schema, text), Some(format), "{format} {text}");
            }
        }
        assert_eq!(mismatched_format(&json!({ "type": "integer", "format": "date" }), "x"), None, "of another type");
        let int32 = json!({ "type": "integer", "format": "int32" });
        assert!(number_matches(&int32, -2_147_483_648.0) && !number_matches(&int32, 2_147_483_648.0));
        assert!(number_matches(&json!({ "type": "integer", "format": "int64" }), 1e18));
    }
}
