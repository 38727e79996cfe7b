//! Names of child objects, as upstream's clients compute them.

/// A name that is a DNS label, and so may be part of a host's.
const NAME_BYTES_MAX: usize = 63;
/// MD5 in hex; the algorithm is upstream's, and nothing is kept safe by it.
const HASH_CHARS: usize = 32;
/// Longer, and the hash would leave nothing of the parent's name.
const SUFFIX_BYTES_MAX: usize = NAME_BYTES_MAX - HASH_CHARS;

/// `parent` and `suffix`; of a parent too long for that its beginning and the hash of it all. The suffix is one of ours,
/// at most `SUFFIX_BYTES_MAX` bytes.
pub fn child_name(parent: &str, suffix: &str) -> String {
    debug_assert!(suffix.len() <= SUFFIX_BYTES_MAX);
    if parent.len() + suffix.len() <= NAME_BYTES_MAX {
        return format!("{parent}{suffix}");
    }
    let kept = parent.floor_char_boundary(SUFFIX_BYTES_MAX.saturating_sub(suffix.len()));
    format!("{}{:x}{suffix}", &parent[..kept], md5::compute(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_shortened_as_upstream_does() {
        assert_eq!(child_name("hello-00001", "-deployment"), "hello-00001-deployment");
        let longest = "a".repeat(52);
        assert_eq!(child_name(&longest, "-deployment"), format!("{longest}-deployment"));
        let longer = "a".repeat(53);
        let short = child_name(&longer, "-deployment");
        assert_eq!(short, format!("{}e9e7e260dce84ffa6e0e7eb5fd9d37fc-deployment", &longer[..20]));
        assert_eq!(short.len(), NAME_BYTES_MAX);
    }
}
