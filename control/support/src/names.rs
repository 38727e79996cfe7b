//! Validation of names.

/// RFC 1123 and RFC 1035 labels end at 63 characters, because DNS ends them there.
pub const LABEL_CHARS_MAX: usize = 63;
/// Longest name of a port; IANA's figure.
const PORT_CHARS_MAX: usize = 15;
/// Longest DNS name.
pub const SUBDOMAIN_CHARS_MAX: usize = 253;
/// Longest repository part of an image reference that registries take.
const REPOSITORY_CHARS_MAX: usize = 255;
/// Longest tag of an image reference.
const TAG_CHARS_MAX: usize = 128;

/// `[a-z]([-a-z0-9]*[a-z0-9])?`, as serving kinds and tags need it.
#[must_use]
pub fn is_dns1035_label(text: &str) -> bool {
    is_dns1123_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// `[a-z0-9]([-a-z0-9]*[a-z0-9])?`.
#[must_use]
pub fn is_dns1123_label(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            bytes.len() <= LABEL_CHARS_MAX
                && alphanumeric(first)
                && alphanumeric(last)
                && bytes.iter().all(|&b| alphanumeric(b) || b == b'-')
        }
        _ => false,
    }
}

/// Kubernetes' message for an invalid name; clients look for this text.
pub const NOT_A_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
    for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Kubernetes' message for an invalid label.
#[must_use]
pub fn label_error(text: &str) -> String {
    if text.len() > LABEL_CHARS_MAX {
        return format!("must be no more than {LABEL_CHARS_MAX} bytes");
    }
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
     with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        .into()
}

/// ... and of one that has to begin with a letter.
#[must_use]
pub fn label_1035_error(text: &str) -> String {
    if text.len() > LABEL_CHARS_MAX {
        return format!("must be no more than {LABEL_CHARS_MAX} bytes");
    }
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
     character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
     '[a-z]([-a-z0-9]*[a-z0-9])?')"
        .into()
}

/// Kubernetes' message for an invalid port name: up to 15 characters, one of them a letter.
#[must_use]
pub fn port_name_error(text: &str) -> Option<&'static str> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.len() > PORT_CHARS_MAX {
        Some("must be no more than 15 characters")
    } else if text.is_empty() || !text.bytes().all(allowed) {
        Some("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    } else if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        Some("must contain at least one letter (a-z)")
    } else if text.contains("--") {
        Some("must not contain consecutive hyphens")
    } else if text.starts_with('-') || text.ends_with('-') {
        Some("must not begin or end with a hyphen")
    } else {
        None
    }
}

/// Labels with dots between them.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_CHARS_MAX && text.split('.').all(is_dns1123_label)
}

/// Whether some object may be called so, of whatever kind. What Kubernetes allows in a path, less what would need an
/// escape there: no object has such a name, and a name of a client's choosing must not become more than a name.
#[must_use]
pub fn is_path_segment(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&b);
    (1..=SUBDOMAIN_CHARS_MAX).contains(&text.len()) && ![".", ".."].contains(&text) && text.bytes().all(plain)
}

/// A CloudEvents attribute as filters name it: `[a-z][a-z0-9]*`.
#[must_use]
pub fn is_attribute(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Whether `text` parses as an image reference: `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`.
#[must_use]
pub fn is_image_reference(text: &str) -> bool {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    // A colon behind the last slash begins a tag; one before it belongs to the registry's port.
    let slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[slash..].find(':') {
        Some(colon) => (&rest[..slash + colon], Some(&rest[slash + colon + 1..])),
        None => (rest, None),
    };
    let repository = match name.split_once('/') {
        Some((registry, repository)) if registry.contains(['.', ':']) || registry == "localhost" => {
            let named = |b: u8| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b);
            if registry.is_empty() || !registry.bytes().all(named) {
                return false;
            }
            repository
        }
        _ => name,
    };
    is_repository(repository) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest)
}

fn is_repository(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-./".contains(&b);
    (1..=REPOSITORY_CHARS_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && text.split('/').all(|part| !part.is_empty())
}

fn is_tag(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    (1..=TAG_CHARS_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_begin_with_a_letter_or_a_digit_as_their_kind_says() {
        for good in ["a", "a-b", "a1", &"a".repeat(63)] {
            assert!(is_dns1035_label(good), "{good}");
        }
        for bad in ["", "A", "1a", "-a", "a-", "a.b", "a_b", &"a".repeat(64)] {
            assert!(!is_dns1035_label(bad), "{bad}");
        }
        assert!(is_dns1123_label("1a"));
        assert!(is_dns_subdomain("a.1b.c"));
        assert!(!is_dns_subdomain("a..b"));
    }

    #[test]
    fn a_name_stays_one_part_of_a_path() {
        for good in ["a", "a.b-c", "system:discovery", "sink.Received.1", "..."] {
            assert!(is_path_segment(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "a?b", "a#b", "%61", "\u{e9}", "a\n", "{a}", &"a".repeat(254)] {
            assert!(!is_path_segment(bad), "{bad}");
        }
    }

    #[test]
    fn invalid_port_name_is_reported() {
        for (name, why) in [
            ("http-1", None),
            ("averyverylongname", Some("15 characters")),
            ("UP", Some("alpha-numeric")),
            ("", Some("alpha-numeric")),
            ("80", Some("at least one letter")),
            ("a--b", Some("consecutive")),
            ("-a", Some("begin or end")),
        ] {
            let found = port_name_error(name);
            assert_eq!(found.is_some(), why.is_some(), "{name}");
            assert!(found.unwrap_or("").contains(why.unwrap_or("")), "{name}: {found:?}");
        }
    }

    /// SRV-CON-07: what does not parse as an image reference is refused.
    #[test]
    fn image_references_parse_weakly() {
        let digest = format!("ghcr.io/acme/hello@sha256:{}", "a".repeat(64));
        for good in ["hello", "ghcr.io/acme/hello:v1", "localhost:5000/x", "a/b/c", "x:Tag_1", &digest] {
            assert!(is_image_reference(good), "{good}");
        }
        for bad in ["", "Hello", "a b", "x:", "x@sha256:1", "/x", "a//b", "x/", "ghcr.io/", "x:a:b"] {
            assert!(!is_image_reference(bad), "{bad}");
        }
    }
}
