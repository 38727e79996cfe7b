//! Which names, label keys and label values Kubernetes allows.

/// Characters of a DNS name.
const NAME_CHARS_MAX: usize = 253;
/// Characters of one label of a DNS name, of a label value, and of a label key behind its prefix.
const LABEL_CHARS_MAX: usize = 63;

/// RFC 1123 subdomain: what names of objects look like.
pub(super) fn is_subdomain(name: &str) -> bool {
    name.len() <= NAME_CHARS_MAX && name.split('.').all(is_dns_part)
}

/// RFC 1123 label: what names of namespaces look like.
pub(super) fn is_dns_label(name: &str) -> bool {
    name.len() <= LABEL_CHARS_MAX && is_dns_part(name)
}

/// Optional DNS prefix and `/`, then a name: what label and annotation keys look like.
pub(super) fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

pub(super) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

fn is_label_name(name: &str) -> bool {
    name.len() <= LABEL_CHARS_MAX
        && ends_are(name, |byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_dns_part(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ends_are(part, plain) && part.bytes().all(|byte| plain(byte) || byte == b'-')
}

/// Whether the first and the last byte are of a kind; an empty text has neither.
fn ends_are(text: &str, kind: impl Fn(u8) -> bool) -> bool {
    matches!((text.bytes().next(), text.bytes().last()), (Some(first), Some(last)) if kind(first) && kind(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subdomain_is_lower_case_and_its_parts_begin_and_end_plainly() {
        for good in ["a", "a-b", "a.b-c.d1", "0"] {
            assert!(is_subdomain(good), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", ".a", "a_b", "a/b", "ä", &"a".repeat(254)] {
            assert!(!is_subdomain(bad), "{bad}");
        }
    }

    #[test]
    fn a_label_key_may_have_one_dns_prefix() {
        for good in ["app", "serving.knative.dev/service", "a_B.c", "example.com/A-1"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "UPPER.example/x", "-a", &"a".repeat(64)] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
    }
}
