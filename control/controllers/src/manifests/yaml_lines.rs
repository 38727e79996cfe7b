//! The line of a field in a YAML or JSON document, for messages. Found by indentation, as people write: of a document in another
//! style, the line of the nearest field above is told.

/// A step of a path like `spec.containers[0].image` or `metadata.annotations[example.com/a]`.
#[derive(Debug, PartialEq, Eq)]
enum FieldStep<'a> {
    Key(&'a str),
    Index(usize),
}

/// A key or the start of an item.
struct YamlEntry<'a> {
    line: usize,
    indent: usize,
    /// `None`: an item begins here.
    key: Option<&'a str>,
}

/// The line of the field at `path` in `text`, from 0.
pub(super) fn line_of(text: &str, path: &str) -> usize {
    let entries = entries(text);
    let (mut from, mut to) = (0, entries.len());
    let mut line = entries.first().map_or(0, |entry| entry.line);
    for step in steps(path) {
        let Some(indent) = entries[from..to].first().map(|entry| entry.indent) else { break };
        let mut siblings = (from..to).filter(|at| entries[*at].indent == indent);
        let found = match step {
            FieldStep::Key(key) => siblings.find(|at| entries[*at].key == Some(key)),
            FieldStep::Index(index) => siblings.filter(|at| entries[*at].key.is_none()).nth(index),
        };
        let Some(at) = found else { break };
        line = entries[at].line;
        let is_below = |entry: &YamlEntry<'_>| {
            // The items of a list may stand as deep as its key.
            entry.indent > indent || (entry.indent == indent && entry.key.is_none() && entries[at].key.is_some())
        };
        from = at + 1;
        to = (from..to).find(|next| !is_below(&entries[*next])).unwrap_or(to);
    }
    line
}

fn entries(text: &str) -> Vec<YamlEntry<'_>> {
    let mut entries = Vec::new();
    for (line, content) in text.lines().enumerate() {
        let mut rest = content.trim_start();
        let mut indent = content.len() - rest.len();
        if rest.is_empty() || rest.starts_with('#') || rest.starts_with("---") {
            continue;
        }
        while let Some(item) = rest.strip_prefix("- ").or_else(|| rest.strip_prefix('-').filter(|rest| rest.is_empty()))
        {
            entries.push(YamlEntry { line, indent, key: None });
            let inner = item.trim_start();
            indent += rest.len() - inner.len();
            rest = inner;
        }
        if let Some(key) = key_of(rest) {
            entries.push(YamlEntry { line, indent, key: Some(key) });
        }
    }
    entries
}

/// The key that a line begins with.
fn key_of(content: &str) -> Option<&str> {
    for quote in ['"', '\''] {
        if let Some(rest) = content.strip_prefix(quote) {
            let (key, rest) = rest.split_once(quote)?;
            return rest.trim_start().starts_with(':').then_some(key);
        }
    }
    let mut colons = content.match_indices(':');
    let end = colons.find(|(at, _)| content[at + 1..].is_empty() || content[at + 1..].starts_with([' ', '\t']))?.0;
    Some(content[..end].trim_end())
}

fn steps(path: &str) -> Vec<FieldStep<'_>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            steps.push(key.parse().map_or(FieldStep::Key(key), FieldStep::Index));
            rest = after.strip_prefix('.').unwrap_or(after);
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let key = &rest[..end];
            steps.push(key.parse().map_or(FieldStep::Key(key), FieldStep::Index));
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "kind: A
metadata:
  annotations:
    example.com/a: x # why: not
    \"b c\": y
spec:
  list:
  - name: one
    port: 1
  -
    name: two
  deep:
    - - x: 1
      - y: 2
";

    #[test]
    fn field_is_found_by_its_path() {
        for (path, line) in [
            ("", 0),
            ("kind", 0),
            ("metadata.annotations[example.com/a]", 3),
            ("metadata.annotations[b c]", 4),
            ("spec.list[0].port", 8),
            ("spec.list[1].name", 10),
            ("spec.list.1.name", 10),
            ("spec.deep[0][1].y", 13),
            ("spec.list[0].nothing", 7),
            ("spec.nothing", 5),
            ("nothing", 0),
        ] {
            assert_eq!(line_of(TEXT, path), line, "{path}");
        }
        assert_eq!(line_of("", "a"), 0);
        assert_eq!(line_of("{a: {b: 1}}", "a.b"), 0);
    }
}
