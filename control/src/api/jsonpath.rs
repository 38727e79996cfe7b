//! The part of JSONPath that printer columns use: `.a.b`, `.a['b.c']`, `[0]`, `[*]` and
//! `[?(@.type=="Ready")]`.
//!
//! Paths come from the registry, those of clients' own kinds from their definitions. A path that is not understood
//! finds nothing.

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
    All,
    /// Elements whose field has this text.
    Where(&'a str, &'a str),
}

/// Everything in `value` that `path` leads to.
pub(super) fn find<'a>(path: &str, value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() && !found.is_empty() {
        let Some((step, behind)) = next_step(rest) else { return Vec::new() };
        rest = behind;
        found = found.into_iter().flat_map(|value| follow(step, value)).collect();
    }
    found
}

fn follow<'a>(step: Step<'_>, value: &'a Value) -> Vec<&'a Value> {
    let elements = || value.as_array().into_iter().flatten();
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(index) => value.get(index).into_iter().collect(),
        Step::All => elements().collect(),
        Step::Where(field, text) => elements().filter(|element| element[field] == text).collect(),
    }
}

fn next_step(path: &str) -> Option<(Step<'_>, &str)> {
    if let Some(inside) = path.strip_prefix("['") {
        let (name, rest) = inside.split_once("']")?;
        return Some((Step::Field(name), rest));
    }
    if let Some(inside) = path.strip_prefix("[?(@.") {
        let (condition, rest) = inside.split_once(")]")?;
        let (field, text) = condition.split_once("==")?;
        let text = text.trim();
        let text = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'))
            .or_else(|| text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')))?;
        return Some((Step::Where(field.trim(), text), rest));
    }
    if let Some(inside) = path.strip_prefix('[') {
        let (index, rest) = inside.split_once(']')?;
        let step = if index == "*" { Step::All } else { Step::Index(index.parse().ok()?) };
        return Some((step, rest));
    }
    let path = path.strip_prefix('.')?;
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, rest) = path.split_at(end);
    (!name.is_empty()).then_some((Step::Field(name), rest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_finds_fields_elements_and_conditions() {
        let object = json!({
            "metadata": { "labels": { "a.b/c": "x" } },
            "status": { "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "Other", "status": "False" },
            ] },
        });
        for (path, expected) in [
            (".metadata.labels['a.b/c']", vec!["x"]),
            (r#".status.conditions[?(@.type=="Ready")].status"#, vec!["True"]),
            (".status.conditions[?(@.type=='Other')].status", vec!["False"]),
            (".status.conditions[1].type", vec!["Other"]),
            (".status.conditions[*].type", vec!["Ready", "Other"]),
            (".status.missing.deeper", vec![]),
            (r#".status.conditions[?(@.type=="None")].status"#, vec![]),
        ] {
            assert_eq!(find(path, &object), expected, "{path}");
        }
    }

    #[test]
    fn a_path_that_is_not_understood_finds_nothing() {
        for path in [".a..b", "[", "a", ".a[x]", ".a[?(@.b=c)]", "."] {
            assert!(find(path, &json!({ "a": [{ "b": "c" }] })).is_empty(), "{path}");
        }
    }
}
