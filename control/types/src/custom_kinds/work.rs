//! Bounds the work of validating an object against a schema, and tracks the path of a value.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde_json::Value;

use cel::bounded_regex::RegexCaches;

use crate::field_errors::Problem;
use crate::limits::OBJECT_BYTES_MAX;

/// Where a rule stands that is about the whole object.
pub(super) const ROOT_PATH: &str = "<nil>";

/// Comparisons that one object and its schema may take: values, properties, words of an enum, branches of `anyOf`, steps of
/// regular expressions. A schema of 1 MB and an object of 1 MB could ask for a million times a million; five million take some
/// 100 ms.
const STEPS_MAX: u64 = 5_000_000;
/// Bytes of text that are checked in the time of a comparison.
const TEXT_BYTES_A_STEP: usize = 10;
/// JSON that defaults may add to one object, in bytes. An object that is longer with them is not stored.
const FILLED_BYTES_MAX: usize = OBJECT_BYTES_MAX;
/// Values that defaults may add to one object: short ones take more memory than their text.
const FILLED_VALUES_MAX: usize = 100_000;

/// The remaining budget for one object.
#[derive(Debug)]
pub(super) struct ValidationWork {
    steps: Cell<u64>,
    /// The field at which no steps were left.
    stopped_at: RefCell<Option<String>>,
    filled_bytes: Cell<usize>,
    filled_values: Cell<usize>,
    /// The memory of its regular expressions.
    pub(super) regex_caches: RefCell<RegexCaches>,
}

impl Default for ValidationWork {
    fn default() -> Self {
        Self {
            steps: Cell::new(STEPS_MAX),
            stopped_at: RefCell::default(),
            filled_bytes: Cell::new(FILLED_BYTES_MAX),
            filled_values: Cell::new(FILLED_VALUES_MAX),
            regex_caches: RefCell::default(),
        }
    }
}

impl ValidationWork {
    /// Counts so many comparisons at a field; `false`: they are not to be made.
    pub(super) fn take(&self, steps: usize, at: At<'_>) -> bool {
        let left = self.steps.get().checked_sub(steps as u64);
        self.steps.set(left.unwrap_or(0));
        if left.is_none() && self.stopped_at.borrow().is_none() {
            self.stopped_at.replace(Some(at.into()));
        }
        left.is_some()
    }

    /// Counts going through a text, and what a message about it takes.
    pub(super) fn take_text(&self, bytes: usize, at: At<'_>) -> bool {
        self.take(1 + bytes / TEXT_BYTES_A_STEP, at)
    }

    /// Counts a default before it is copied into the object; `false`: it is not to be copied.
    pub(super) fn fill(&self, default: &Value) -> bool {
        let (bytes, values) = size(default);
        let left = self.filled_bytes.get().checked_sub(bytes).zip(self.filled_values.get().checked_sub(values));
        let (bytes, values) = left.unwrap_or_default();
        self.filled_bytes.set(bytes);
        self.filled_values.set(values);
        left.is_some()
    }

    /// Why the object is refused, if it asked for too much, and for which field.
    pub(super) fn exceeded(&self) -> Option<Problem> {
        let problem = |field: &str, message| {
            let field = if field.is_empty() { ROOT_PATH } else { field };
            Some(Problem { field: field.to_owned(), message })
        };
        if self.filled_bytes.get() == 0 || self.filled_values.get() == 0 {
            let why = format!(
                "Too long: the defaults of the schema add more than {FILLED_BYTES_MAX} bytes or {FILLED_VALUES_MAX} values"
            );
            return problem("", why);
        }
        let stopped_at = self.stopped_at.borrow();
        let why = format!(
            "Too long: validation against the schema takes more than {STEPS_MAX} comparisons; send a smaller object"
        );
        problem(stopped_at.as_deref()?, why)
    }
}

/// The text and the number of values of a value, as good as.
pub(super) fn size(value: &Value) -> (usize, usize) {
    let inner = |all: &mut dyn Iterator<Item = (usize, usize)>| {
        all.fold((2, 1), |(bytes, values), (more, count)| (bytes + more + 1, values + count))
    };
    match value {
        Value::String(text) => (text.len() + 2, 1),
        Value::Array(items) => inner(&mut items.iter().map(size)),
        Value::Object(fields) => inner(&mut fields.iter().map(|(name, value)| {
            let (bytes, values) = size(value);
            (bytes + name.len() + 3, values)
        })),
        _ => (5, 1),
    }
}

/// Where a value is in an object. It is serialized only for a problem: a key may be as long as the body, and a
/// path to each of the values below it would be, too.
#[derive(Debug, Clone, Copy)]
pub enum At<'a> {
    /// At the root, or below this path.
    Root(&'a str),
    Field(&'a At<'a>, &'a str),
    Item(&'a At<'a>, usize),
    /// The entry of a map that a schema has a name for: `properties[NAME]`.
    Entry(&'a At<'a>, &'a str, &'a str),
}

impl At<'_> {
    fn is_empty(self) -> bool {
        matches!(self, Self::Root(""))
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Root(path) => formatter.write_str(path),
            Self::Field(parent, name) if parent.is_empty() => formatter.write_str(name),
            Self::Field(parent, name) => write!(formatter, "{parent}.{name}"),
            Self::Item(parent, index) => write!(formatter, "{parent}[{index}]"),
            Self::Entry(parent, map, name) => write!(formatter, "{parent}.{map}[{name}]"),
        }
    }
}

impl From<At<'_>> for String {
    fn from(at: At<'_>) -> Self {
        at.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_is_written_as_kubernetes_writes_it() {
        let root = At::Root("");
        let spec = At::Field(&root, "spec");
        let list = At::Field(&spec, "list");
        assert_eq!(String::from(At::Field(&At::Item(&list, 3), "a")), "spec.list[3].a");
        assert_eq!(At::Field(&At::Root("status"), "a").to_string(), "status.a");
        assert_eq!(At::Item(&root, 1).to_string(), "[1]");
    }

    #[test]
    fn defaults_are_counted_before_they_are_copied() {
        let work = ValidationWork::default();
        let default = json!({ "a": "x".repeat(1000), "b": [1, 2] });
        let copies = (0..1_000_000).take_while(|_| work.fill(&default)).count();
        assert!((2_000..4_000).contains(&copies), "{copies}");
        assert!(work.exceeded().is_some_and(|why| why.field == ROOT_PATH && why.message.contains("defaults")));
        let work = ValidationWork::default();
        let (root, at) = (At::Root(""), At::Root("spec.a"));
        assert!(work.take(1_000_000, root) && work.exceeded().is_none());
        assert!(!work.take(usize::MAX, at) && !work.take(1, root));
        assert!(work.exceeded().is_some_and(|why| why.field == "spec.a" && why.message.contains("comparisons")));
    }
}
