//! Priorities of responses (RFC 9218).

/// What a client says about the order of its responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponsePriority {
    /// 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// Parts of the response are useful by themselves.
    pub incremental: bool,
}

impl Default for ResponsePriority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl ResponsePriority {
    /// Reads the value of a `priority` field or of PRIORITY_UPDATE: a dictionary of structured fields. What is unknown
    /// or out of range is ignored (RFC 9218 4).
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|byte| *byte == b',') {
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            match member {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_is_read_and_unknown_members_are_ignored() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=1", 1, false),
            ("u=7, i", 7, true),
            ("i=?1;x=2 , u=0", 0, true),
            ("u=8", 3, false),
            ("u=-1, i=1", 3, false),
            ("u=2, i, i=?0", 2, false),
            ("x=\"a\", u=5;q", 5, false),
        ] {
            let priority = ResponsePriority::parse(value.as_bytes());
            assert_eq!((priority.urgency, priority.incremental), (urgency, incremental), "{value}");
        }
    }
}
