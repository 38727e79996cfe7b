//! Limits the lengths of an object's lists, before they are parsed into types.
//!
//! A container is 2 bytes as JSON (`{}`) and 2,000 as a type with its defaults, so the length of a body does not bound
//! the memory of its objects.

use serde_json::Value;

use crate::field_errors::Problem;

/// Items of all lists of one object that are objects or lists themselves. Kubernetes' own limits for single lists are at 1,000
/// (endpoints of a slice); 10,000 items take some 20 MB as types.
const ITEMS_MAX: usize = 10_000;
/// Items of one list, where each takes thousands of bytes as a type: no instance runs more.
const LONG_ITEMS_MAX: [(&str, usize); 4] =
    [("containers", 250), ("ephemeralContainers", 250), ("initContainers", 250), ("volumes", 1_000)];

/// The error about an object's lists, if one is too long.
pub fn too_many(object: &Value) -> Option<Problem> {
    let mut count = 0;
    walk("", object, &mut count).or_else(|| {
        (count > ITEMS_MAX).then(|| {
            let message = format!("Too many: {count}: all lists together must have at most {ITEMS_MAX} items");
            Problem { field: String::new(), message }
        })
    })
}

/// Counts into `count`. Recursion is bounded by a body's nesting.
fn walk(name: &str, value: &Value, count: &mut usize) -> Option<Problem> {
    match value {
        Value::Array(items) => {
            let limit = LONG_ITEMS_MAX.iter().find(|(list, _)| *list == name).map(|(_, limit)| *limit);
            if let Some(limit) = limit.filter(|limit| items.len() > *limit) {
                let message = format!("Too many: {}: must have at most {limit} items", items.len());
                return Some(Problem { field: name.to_owned(), message });
            }
            *count += items.iter().filter(|item| !item.is_string() && !item.is_number()).count();
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
        assert_eq!(too_many(&pods(250)), None);
        let found = too_many(&pods(251)).unwrap();
        assert_eq!(
            (found.field.as_str(), found.message.as_str()),
            ("containers", "Too many: 251: must have at most 250 items")
        );
        let lists = |count: usize| json!({ "a": vec![json!({}); count], "b": [{ "c": vec![json!(null); count] }], "args": vec!["x"; 50_000] });
        assert_eq!(too_many(&lists(4_000)), None);
        assert!(too_many(&lists(6_000)).unwrap().message.contains("12001"));
    }
}
