//! Limits the lengths of an object's lists, before they are parsed into types.
//!
//! A container is 2 bytes as JSON (`{}`) and 2,000 as a type with its defaults, so the length of a body does not bound
//! the memory of its objects.

use serde_json::Value;

use crate::field_errors::Problem;

/// Items of all lists of one object. Kubernetes' own limits for single lists are at 1,000 (endpoints of a slice); 10,000 items
/// take some 20 MB as types, and an empty text ten times its length even as a value.
pub const ITEMS_MAX: usize = 10_000;
/// The same for a CustomResourceDefinition. Its schemas list names and values: the largest that users write have some 10,000.
/// Items that are objects or lists have the limit of other kinds.
pub const DEFINITION_ITEMS_MAX: usize = 100_000;
/// Items of one list, where each takes thousands of bytes as a type: no instance runs more.
const LONG_ITEMS_MAX: [(&str, usize); 4] =
    [("containers", 250), ("ephemeralContainers", 250), ("initContainers", 250), ("volumes", 1_000)];

/// The items of all lists of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ItemCount {
    pub all: usize,
    /// Those that are objects or lists.
    pub nested: usize,
}

impl ItemCount {
    /// The error about so many items, if `limit` or, for nested ones, [`ITEMS_MAX`] is exceeded.
    #[must_use]
    pub fn problem(self, limit: usize) -> Option<Problem> {
        let (count, limit) = if self.nested > ITEMS_MAX { (self.nested, ITEMS_MAX) } else { (self.all, limit) };
        (count > limit).then(|| {
            let message = format!("Too many: {count}: all lists together must have at most {limit} items");
            Problem { field: String::new(), message }
        })
    }
}

/// The error about an object's lists, if one is too long, or if they have more than `limit` items together.
pub fn too_many(object: &Value, limit: usize) -> Option<Problem> {
    let mut count = ItemCount::default();
    walk("", object, &mut count).or_else(|| count.problem(limit))
}

/// Counts into `count`. Recursion is bounded by a body's nesting.
fn walk(name: &str, value: &Value, count: &mut ItemCount) -> Option<Problem> {
    match value {
        Value::Array(items) => {
            let limit = LONG_ITEMS_MAX.iter().find(|(list, _)| *list == name).map(|(_, limit)| *limit);
            if let Some(limit) = limit.filter(|limit| items.len() > *limit) {
                let message = format!("Too many: {}: must have at most {limit} items", items.len());
                return Some(Problem { field: name.to_owned(), message });
            }
            count.all += items.len();
            count.nested += items.iter().filter(|item| item.is_object() || item.is_array()).count();
            items.iter().find_map(|item| walk("", item, count))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, value)| walk(name, value, count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_bounded_each_and_together() {
        let pods =
            |count: usize| json!({ "spec": { "template": { "spec": { "containers": vec![json!({}); count] } } } });
        assert_eq!(too_many(&pods(250), ITEMS_MAX), None);
        let found = too_many(&pods(251), ITEMS_MAX).unwrap();
        assert_eq!(
            (found.field.as_str(), found.message.as_str()),
            ("containers", "Too many: 251: must have at most 250 items")
        );
        let lists = |count: usize| json!({ "a": vec![json!({}); count], "b": [{ "c": vec![json!(null); count] }], "args": vec!["x"; 1_000] });
        assert_eq!(too_many(&lists(4_000), ITEMS_MAX), None);
        assert!(too_many(&lists(6_000), ITEMS_MAX).unwrap().message.contains("13001"));
        let words = json!({ "required": vec!["x"; 20_000] });
        assert_eq!(too_many(&words, DEFINITION_ITEMS_MAX), None);
        assert!(too_many(&words, ITEMS_MAX).is_some());
        let schemas = json!({ "anyOf": vec![json!({}); 20_000] });
        assert!(too_many(&schemas, DEFINITION_ITEMS_MAX).unwrap().message.contains("at most 10000"));
    }
}
