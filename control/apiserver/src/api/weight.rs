//! Estimates the memory that a body needs as a tree of values, from its bytes, before the tree is built.
//!
//! JSON of one kilobyte can become a hundred in memory: `{}` is 3 bytes with its comma and 32 as a value, `{"a":1}` is 8 and
//! 700. So values are counted first, in one pass that allocates nothing.

use serde_json::Value;
use types::items::ItemCount;
use types::kind_registry::KindEntry;

use super::errors::StatusError;
use super::list_lengths::{DEPTH_MAX, skip_string};

/// Memory that one body may take as a tree, in bytes. The largest definitions that users write (1.5 MB of
/// schema, 20,000 objects) take 25 MB. What is done with a tree (defaults, a typed copy, owners, the answer) takes
/// some three times as much again.
pub(super) const TREE_BYTES_MAX: usize = 48 << 20;
/// Bodies that take less are handled at once, on the thread that has them.
const SMALL_TREE_BYTES_MAX: usize = 256 * 1024;
/// ... if their text is short, too: reading it takes some 3 ms.
const SMALL_TEXT_BYTES_MAX: usize = 16 * 1024;

/// Brackets of YAML that may be open at a time, those in texts included: the parser looks at all of them for each word.
const YAML_OPEN_MAX: usize = 256;

/// Bytes of one value, of an entry of an object besides its value, and of the first node of an object that is not empty.
pub(super) const VALUE_BYTES: usize = 32;
pub(super) const ENTRY_BYTES: usize = 80;
pub(super) const OBJECT_BYTES: usize = 640;

/// The estimated memory of a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight {
    text_bytes: usize,
    pub(super) values: usize,
    entries: usize,
    /// The non-empty objects.
    objects: usize,
    pub(super) items: ItemCount,
}

impl Weight {
    /// The estimated memory of the body; an error if that is too much, or if it nests too deep.
    pub(super) fn of(media: Option<&str>, body: &[u8]) -> Result<Self, StatusError> {
        let weight = match media {
            Some("application/vnd.kubernetes.protobuf") => Self::of_protobuf(body),
            Some("application/yaml" | "application/x-yaml" | "text/yaml" | "application/apply-patch+yaml")
                if !is_json(body) =>
            {
                check_brackets(body)?;
                Self::of_yaml(body)
            }
            _ => Self::of_json(body),
        };
        if weight.tree_bytes() > TREE_BYTES_MAX {
            let (values, bytes) = (weight.values, weight.tree_bytes());
            let message = format!(
                "Request entity too large: its {values} values take {bytes} bytes in memory, limit is {TREE_BYTES_MAX}; \
                 send fewer values"
            );
            return Err(StatusError { message, ..StatusError::too_large(TREE_BYTES_MAX) });
        }
        Ok(weight)
    }

    /// Refuses lists that are too long for the kind, before they become a tree. An object that is new may have no name yet.
    pub(super) fn check_items(&self, entry: &KindEntry, name: Option<&str>) -> Result<(), StatusError> {
        match entry.bounded_items().and_then(|limit| self.items.problem(limit)) {
            Some(problem) => Err(StatusError::invalid(entry.meta, name.unwrap_or_default(), &[problem])),
            None => Ok(()),
        }
    }

    /// The same in addition to a stored object of so many bytes, which takes six times its text as a tree.
    pub(super) fn with_stored(self, json_bytes: usize) -> Self {
        let values = self.values + json_bytes * 5 / VALUE_BYTES;
        Self { text_bytes: self.text_bytes + json_bytes, values, ..self }
    }

    /// Memory that the tree will take.
    pub(super) fn tree_bytes(&self) -> usize {
        self.text_bytes + self.values * VALUE_BYTES + self.entries * ENTRY_BYTES + self.objects * OBJECT_BYTES
    }

    pub(super) fn is_small(&self) -> bool {
        self.text_bytes <= SMALL_TEXT_BYTES_MAX && self.tree_bytes() <= SMALL_TREE_BYTES_MAX
    }

    fn of_json(body: &[u8]) -> Self {
        let mut weight = Self { text_bytes: body.len(), values: 1, ..Self::default() };
        // A bit for each level that is open: whether it is a list.
        let (mut depth, mut lists) = (0_usize, 0_u128);
        // The bracket that has just been opened.
        let mut opened = None;
        let mut rest = body.iter();
        while let Some(&byte) = rest.next() {
            if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                continue;
            }
            let was_opened = std::mem::take(&mut opened);
            weight.items.all += usize::from(was_opened == Some(b'[') && byte != b']');
            match byte {
                b'"' => {
                    skip_string(&mut rest);
                    weight.objects += usize::from(was_opened == Some(b'{'));
                }
                b'{' | b'[' => {
                    weight.values += 1;
                    weight.items.nested += usize::from(lists & 1 == 1);
                    lists = lists << 1 | u128::from(byte == b'[');
                    depth += 1;
                    // The parser refuses it where this one stops.
                    if depth > DEPTH_MAX {
                        break;
                    }
                    opened = Some(byte);
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    lists >>= 1;
                }
                b',' => {
                    weight.values += 1;
                    weight.items.all += usize::from(lists & 1 == 1);
                }
                b':' => weight.entries += 1,
                _ => {}
            }
        }
        weight
    }

    /// Each value of YAML takes at least one of these bytes, so that it is never more; where texts are full of them it is less.
    /// A client that is refused for that can send JSON.
    pub(super) fn of_yaml(body: &[u8]) -> Self {
        let count = |wanted: &[u8]| body.iter().filter(|byte| wanted.contains(byte)).count();
        let (entries, lines) = (count(b":"), count(b"\n"));
        // The parser stores an event for each value in addition to the tree.
        let values = 2 * (1 + lines + count(b",[{"));
        Self {
            text_bytes: body.len(),
            values,
            entries,
            objects: entries.min(lines + count(b"{")) / 2,
            items: ItemCount::default(),
        }
    }

    /// As good as: messages are counted when they are read, and refused beyond their limit.
    fn of_protobuf(body: &[u8]) -> Self {
        let bytes = body.len();
        Self {
            text_bytes: bytes,
            values: 1 + bytes / 8,
            entries: bytes / 24,
            objects: bytes / 100,
            items: ItemCount::default(),
        }
    }
}

/// Memory that a value takes; `None`: more than `limit`. Looks at no more of it than that.
pub(super) fn within(value: &Value, limit: usize) -> Option<usize> {
    fn subtract(left: &mut usize, bytes: usize) -> Option<()> {
        *left = left.checked_sub(bytes)?;
        Some(())
    }
    fn walk(value: &Value, left: &mut usize) -> Option<()> {
        subtract(left, VALUE_BYTES)?;
        match value {
            Value::String(text) => subtract(left, text.len()),
            Value::Array(items) => items.iter().try_for_each(|item| walk(item, left)),
            Value::Object(fields) => {
                subtract(left, if fields.is_empty() { 0 } else { OBJECT_BYTES })?;
                fields.iter().try_for_each(|(name, inner)| {
                    subtract(left, ENTRY_BYTES + name.len())?;
                    walk(inner, left)
                })
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Some(()),
        }
    }
    let mut left = limit;
    walk(value, &mut left)?;
    Some(limit - left)
}

/// Refuses YAML with too many open brackets before the parser sees it.
fn check_brackets(body: &[u8]) -> Result<(), StatusError> {
    let mut open = 0_usize;
    for byte in body {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > YAML_OPEN_MAX {
            let why = format!("error converting YAML to JSON: more than {YAML_OPEN_MAX} brackets are open; send JSON");
            return Err(StatusError::bad_request(why));
        }
    }
    Ok(())
}

/// Whether a body that may be YAML is an object in JSON, which is YAML too and is read by the parser for JSON.
pub(super) fn is_json(body: &[u8]) -> bool {
    begins_as_json(body) && serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

/// Whether it is worth a try.
pub(super) fn begins_as_json(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"{")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> (usize, usize, usize) {
        let weight = Weight::of(Some("application/json"), text.as_bytes()).unwrap();
        (weight.values, weight.entries, weight.objects)
    }

    #[test]
    fn values_of_json_are_counted_outside_of_texts() {
        assert_eq!(json(r#"{"a":[1,2,{}],"b":"{[,:\"{"}"#), (7, 2, 1));
        assert_eq!(json(r#"[ { "a" : { } } , { } ]"#), (6, 1, 1));
        assert_eq!(json(r#""\\""#), (1, 0, 0));
        assert_eq!(json(""), (1, 0, 0));
    }

    /// As `items::too_many` counts them in the tree.
    #[test]
    fn items_of_all_lists_are_counted() {
        let items = |text: &str| {
            let items = Weight::of(None, text.as_bytes()).unwrap().items;
            (items.all, items.nested)
        };
        assert_eq!(items(r#"[{},[ ],{"a":[true,false,null]},1,-2.5e7,"t[{", [[{}]]]"#), (12, 6));
        assert_eq!(items(r#"{"a":true,"b":{"c":null,"d":{}},"e":"n"}"#), (0, 0));
        assert_eq!(items("]}][\n"), (0, 0));
    }

    #[test]
    fn body_of_many_values_is_refused_before_it_is_parsed() {
        let list = |item: &str, count: usize| format!("{{\"spec\":{{\"ports\":[{}]}}}}", vec![item; count].join(","));
        let refused =
            |media: &str, text: &str| Weight::of(Some(media), text.as_bytes()).is_err_and(|why| why.code == 413);
        assert!(refused("application/json", &list("{\"a\":1}", 300_000)));
        assert!(refused("application/json", &list("1", 1_550_000)));
        assert!(refused("application/apply-patch+yaml", &list("{\"a\":1}", 300_000)));
        assert!(refused("application/yaml", &format!("a:\n{}", "- {}\n".repeat(600_000))));
        assert!(!refused("application/json", &list("{\"a\":1}", 10_000)));
        let definition =
            "\"p\":{\"type\":\"string\",\"description\":\"what it is, in some fifty letters or so\"},".repeat(15_000);
        assert!(!refused("application/json", &format!("{{{definition}\"q\":1}}")));
        let text =
            format!("data:\n  log: |\n{}", "    2026-01-01 12:00:00 a line of a log, with a comma\n".repeat(20_000));
        assert!(!refused("application/yaml", &text));
        assert!(!refused("application/vnd.kubernetes.protobuf", &"\0".repeat(3 << 20)));
    }

    #[test]
    fn yaml_of_open_brackets_is_refused_before_it_is_parsed() {
        let refused =
            |text: &str| Weight::of(Some("application/yaml"), text.as_bytes()).is_err_and(|why| why.code == 400);
        assert!(refused(&"[".repeat(1000)) && refused(&"{a: [".repeat(200)));
        assert!(!refused(&"- [a, {b: c}]\n".repeat(1000)) && !refused(&"[".repeat(YAML_OPEN_MAX)));
    }

    #[test]
    fn small_body_has_few_values_and_a_short_text() {
        let small = |text: &str| Weight::of(None, text.as_bytes()).unwrap().is_small();
        assert!(small("{}") && small(r#"{"spec":{"containers":[{"image":"a"}]}}"#));
        assert!(!small(&format!("\"{}\"", "a".repeat(SMALL_TEXT_BYTES_MAX))));
        assert!(!small(&format!("[{}]", vec!["{\"a\":1}"; 1000].join(","))));
    }
}
