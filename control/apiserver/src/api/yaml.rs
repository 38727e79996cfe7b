//! Objects in YAML that YAML 1.1 and 1.2 readers parse alike.
//!
//! kubectl and most tools read YAML 1.1, where `yes`, `on`, `1e3`, `012`, `1:30` and `2026-01-01` are not strings,
//! and YAML 1.2 has its own list. So a string is written without quotes only if it begins with a letter and
//! contains only letters, digits and a few characters without special meaning; all others are quoted as in
//! JSON, which is valid YAML. Lists are indented like their key, as kubectl writes them.

use serde_json::{Number, Value};

/// Words that some version of YAML does not parse as a string, in any case.
const RESERVED_WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// The document, with a line end.
#[must_use]
pub fn write(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0, true);
    text
}

/// A value behind its key or dash. `fresh`: at the beginning of a line, or right behind a dash.
fn block(text: &mut String, value: &Value, indent: usize, fresh: bool) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut inline = fresh;
            for (name, inner) in fields {
                start_entry(text, indent, &mut inline);
                string(text, name);
                text.push(':');
                let deeper = if inner.is_array() { indent } else { indent + 2 };
                block(text, inner, deeper, false);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let mut inline = fresh;
            for item in items {
                start_entry(text, indent, &mut inline);
                text.push('-');
                if is_block(item) {
                    text.push(' ');
                    block(text, item, indent + 2, true);
                } else {
                    block(text, item, indent, false);
                }
            }
        }
        scalar => {
            if !fresh {
                text.push(' ');
            }
            match scalar {
                Value::String(found) => string(text, found),
                Value::Number(found) => number(text, found),
                other => text.push_str(&other.to_string()),
            }
            text.push('\n');
        }
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

/// Goes to where an entry stands. The first behind a dash, and the first of all, are there already.
fn start_entry(text: &mut String, indent: usize, inline: &mut bool) {
    if !std::mem::take(inline) {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.extend(std::iter::repeat_n(' ', indent));
    }
}

fn string(text: &mut String, found: &str) {
    if is_plain(found) {
        text.push_str(found);
        return;
    }
    text.push('"');
    for c in found.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            // Not printable for some version, or an end of a line for one.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !RESERVED_WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

/// YAML 1.1 wants a point and a sign in a number with an exponent.
fn number(text: &mut String, found: &Number) {
    let written = found.to_string();
    let Some((digits, exponent)) = written.split_once('e') else { return text.push_str(&written) };
    text.push_str(digits);
    if !digits.contains('.') {
        text.push_str(".0");
    }
    text.push('e');
    if !exponent.starts_with(['-', '+']) {
        text.push('+');
    }
    text.push_str(exponent);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn it_looks_as_kubectl_writes_it() {
        let value = json!({
            "apiVersion": "v1", "kind": "List", "metadata": {},
            "items": [{ "a": [1, -2.5, true, null], "b": { "c": "d" } }, [["x"], []], {}],
        });
        let expected = "apiVersion: v1\nitems:\n- a:\n  - 1\n  - -2.5\n  - true\n  - null\n  b:\n    c: d\n\
                        - - - x\n  - []\n- {}\nkind: List\nmetadata: {}\n";
        assert_eq!(write(&value), expected);
    }

    /// Each is something else than a string to some reader of YAML.
    #[test]
    fn strings_that_look_like_something_else_are_quoted() {
        for text in [
            "",
            "~",
            "yes",
            "No",
            "ON",
            "off",
            "y",
            "N",
            "true",
            "False",
            "null",
            "NULL",
            "1",
            "012",
            "0x1f",
            "1e3",
            "1_000",
            "1.5",
            ".5",
            "+1",
            "-1",
            ".inf",
            "-.Inf",
            ".nan",
            "1:30",
            "2026-01-01",
            "2026-01-01T00:00:00Z",
            "=",
            "<<",
            "- a",
            "a: b",
            "a #b",
            " a",
            "a ",
            "*a",
            "&a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "'a'",
            "\"a\"",
            "a\nb",
            "a\tb",
            "[a]",
            "{a}",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "---",
            "...",
            "ü",
        ] {
            let written = write(&json!({ "a": text }));
            assert!(written.starts_with("a: \"") && written.ends_with("\"\n"), "{written}");
            assert_eq!(serde_norway::from_str::<Value>(&written).unwrap(), json!({ "a": text }), "{written}");
            let key = write(&json!({ text: 1 }));
            assert!(key.starts_with('"'), "{key}");
        }
        for plain in ["a", "serving.knative.dev/v1", "a-b_c.d", "e3", "Ready", "yess"] {
            assert_eq!(write(&json!(plain)), format!("{plain}\n"));
        }
    }

    #[test]
    fn numbers_have_the_form_that_all_versions_know() {
        for (number, expected) in [(json!(1e300), "1.0e+300\n"), (json!(1.5e-9), "1.5e-9\n"), (json!(-3), "-3\n")] {
            assert_eq!(write(&number), expected);
            assert_eq!(serde_norway::from_str::<Value>(expected).unwrap(), number);
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-zA-Z0-9 .:#-]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-z0-9 .:-]{0,6}", inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(value in any_value()) {
            let written = write(&value);
            let read: Value = serde_norway::from_str(&written).map_err(|why| TestCaseError::fail(format!("{why}: {written}")))?;
            prop_assert_eq!(read, value, "{}", written);
        }
    }
}
