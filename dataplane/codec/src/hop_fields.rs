//! The header fields of a message that are not passed on with it: those of one connection (RFC 9110 7.6.1), and those that the
//! parts of this process send each other.

/// Marks requests of this process; its value is a secret.
pub const INTERNAL_HEADER: &str = "Sluicegate-Internal";

/// How the names of fields between the parts of this process begin.
const INTERNAL_PREFIX: &str = "sluicegate-";

/// Fields of one connection, and those that the writer of a message adds.
const CONNECTION_FIELDS: [&str; 10] = [
    "host",
    "content-length",
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// Whether a field, by its name in any case, stays behind when its message is passed on.
#[must_use]
pub fn is_hop_field(name: &str) -> bool {
    let begin = name.get(..INTERNAL_PREFIX.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(INTERNAL_PREFIX))
        || CONNECTION_FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_connection_and_of_this_process_stay_behind() {
        for (name, stays) in [
            ("Transfer-Encoding", true),
            ("host", true),
            (INTERNAL_HEADER, true),
            ("SLUICEGATE-Hops-Left", true),
            ("sluicegate", false),
            ("content-type", false),
            ("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", false),
            ("", false),
        ] {
            assert_eq!(is_hop_field(name), stays, "{name}");
        }
    }
}
