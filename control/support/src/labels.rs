//! Which names, label keys and label values Kubernetes allows.

/// Characters of a DNS name.
pub const NAME_CHARS_MAX: usize = 253;
/// Characters of one label of a DNS name, of a label value, and of a label key behind its prefix.
const LABEL_CHARS_MAX: usize = 63;

/// RFC 1123 subdomain: what names of objects look like.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= NAME_CHARS_MAX && name.split('.').all(is_dns_part)
}

/// RFC 1123 label: what names of namespaces look like.
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= LABEL_CHARS_MAX && is_dns_part(name)
}

/// Optional DNS prefix and `/`, then a name: what label and annotation keys look like.
pub fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

/// Kubernetes' message for an invalid label key.
pub fn label_key_error(key: &str) -> Option<String> {
    if is_qualified_name(key) {
        return None;
    }
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    Some(match prefix {
        _ if name.contains('/') => {
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
             with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation \
             is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. \
             'example.com/MyName')"
                .into()
        }
        Some("") => "prefix part must be non-empty".into(),
        Some(prefix) if !is_subdomain(prefix) => {
            "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
             '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
             validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into()
        }
        _ if name.is_empty() => "name part must be non-empty".into(),
        _ if name.len() > LABEL_CHARS_MAX => {
            format!("name part must be no more than {LABEL_CHARS_MAX} bytes")
        }
        _ => "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
              alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
              '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            .into(),
    })
}

/// ... and of a label value.
pub fn label_value_error(value: &str) -> Option<String> {
    if is_label_value(value) {
        return None;
    }
    Some(if value.len() > LABEL_CHARS_MAX {
        format!("must be no more than {LABEL_CHARS_MAX} bytes")
    } else {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
         and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
         validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            .into()
    })
}

fn is_label_name(name: &str) -> bool {
    name.len() <= LABEL_CHARS_MAX
        && starts_and_ends_with(name, |byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_dns_part(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    starts_and_ends_with(part, plain) && part.bytes().all(|byte| plain(byte) || byte == b'-')
}

/// Whether the first and the last byte are of a kind; an empty text has neither.
fn starts_and_ends_with(text: &str, kind: impl Fn(u8) -> bool) -> bool {
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
    fn label_error_names_the_part() {
        let long = "a".repeat(64);
        for (key, why) in [
            ("bad key", "name part must consist of"),
            ("/a", "prefix part must be non-empty"),
            ("a/", "name part must be non-empty"),
            ("", "name part must be non-empty"),
            ("UPPER.example/x", "prefix part a lowercase RFC 1123 subdomain"),
            ("a/b/c", "a qualified name must consist of"),
            (long.as_str(), "name part must be no more than 63 bytes"),
        ] {
            assert!(label_key_error(key).unwrap().starts_with(why), "{key}");
        }
        assert!(label_value_error("-").unwrap().starts_with("a valid label must be"));
        assert_eq!(label_value_error(&long).unwrap(), "must be no more than 63 bytes");
        assert_eq!((label_key_error("a/b"), label_value_error("")), (None, None));
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
