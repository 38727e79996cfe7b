//! The lengths of a JSON document's lists, before it is read.
//!
//! A list that grows while it is read takes three times its memory: it doubles, and both copies exist for a moment. So the
//! lists are counted first, in one pass over the text.

/// Shorter lists are not listed: growing them costs little.
const LISTED_MIN: u32 = 16;
/// Levels of nesting; the parsers stop there.
pub(super) const DEPTH_MAX: usize = 128;

/// The lengths of long lists, in the order in which the lists begin.
#[derive(Debug, Default)]
pub(super) struct ListLengths(Vec<(u32, u32)>);

/// A list or an object that has not ended yet.
#[derive(Clone, Copy, Default)]
struct OpenBracket {
    /// Which list it is; `None`: an object.
    list: Option<u32>,
    commas: u32,
}

impl ListLengths {
    /// Of a text that may be malformed: then they mean nothing, and are still at most one for each comma.
    pub(super) fn of_json(text: &[u8]) -> Self {
        let (mut lengths, mut open, mut depth, mut lists) =
            (Vec::new(), [OpenBracket::default(); DEPTH_MAX], 0_usize, 0_u32);
        let mut rest = text.iter();
        while let Some(byte) = rest.next() {
            match byte {
                b'"' => skip_string(&mut rest),
                b'[' | b'{' => {
                    let Some(slot) = open.get_mut(depth) else { break };
                    *slot = OpenBracket { list: (*byte == b'[').then_some(lists), commas: 0 };
                    lists += u32::from(*byte == b'[');
                    depth += 1;
                }
                b',' => {
                    if let Some(inner) = depth.checked_sub(1).and_then(|at| open.get_mut(at)) {
                        inner.commas += 1;
                    }
                }
                b']' | b'}' => {
                    depth = depth.saturating_sub(1);
                    let ended = open.get(depth).copied().unwrap_or_default();
                    if let Some(list) = ended.list.filter(|_| ended.commas + 1 >= LISTED_MIN) {
                        lengths.push((list, ended.commas + 1));
                    }
                }
                _ => {}
            }
        }
        lengths.sort_unstable();
        Self(lengths)
    }

    /// The length of the `nth` list that begins; 0: it is short, or unknown.
    pub(super) fn of(&self, nth: u32) -> usize {
        let found = self.0.binary_search_by_key(&nth, |(list, _)| *list);
        found.ok().and_then(|at| usize::try_from(self.0[at].1).ok()).unwrap_or(0)
    }
}

/// To the end of a string that has begun, over what is escaped.
pub(super) fn skip_string<'a>(rest: &mut impl Iterator<Item = &'a u8>) {
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => drop(rest.next()),
            b'"' => break,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &str) -> Vec<(u32, u32)> {
        ListLengths::of_json(text.as_bytes()).0
    }

    #[test]
    fn long_lists_are_counted_in_the_order_in_which_they_begin() {
        let long = |item: &str| format!("[{}]", vec![item; 20].join(","));
        assert_eq!(lengths(&long("{\"a\":[1,2]}")), [(0, 20)]);
        assert_eq!(
            lengths(&format!("{{\"a\":[1,2],\"b\":[{}, {}]}}", long("\"],[\\\"\""), long("[]"))),
            [(2, 20), (3, 20)]
        );
        assert_eq!(ListLengths::of_json(long("1").as_bytes()).of(0), 20);
        assert_eq!(ListLengths::of_json(long("1").as_bytes()).of(1), 0);
    }

    #[test]
    fn malformed_text_is_counted_without_harm() {
        for text in ["]]]]", "[[[[", ",,,,", "\"", "\"\\", "{]}[", ""] {
            assert_eq!(lengths(text), [], "{text}");
        }
        assert_eq!(lengths(&format!("[{}]", ",".repeat(40))), [(0, 41)]);
        assert_eq!(lengths(&"[".repeat(1000)), []);
    }
}
