//! The regular expressions of a schema: compiled once, and bounded together.

use serde_json::Value;

use super::work::{At, ValidationWork};
use cel::bounded_regex::PatternSet;

/// A schema's patterns by their text. A list's items share one, and compiling it takes longer than a match.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    compiled: PatternSet,
}

impl Patterns {
    pub(super) fn of(schema: &Value) -> Self {
        let mut patterns = Self::default();
        patterns.collect(schema);
        patterns
    }

    fn collect(&mut self, schema: &Value) {
        if let Some(pattern) = schema["pattern"].as_str() {
            // What is wrong with it is asked for where it stands.
            let _ = self.compiled.get_or_compile(pattern);
        }
        schema["properties"].as_object().into_iter().flatten().for_each(|(_, inner)| self.collect(inner));
        for name in ["allOf", "anyOf", "oneOf"] {
            schema[name].as_array().into_iter().flatten().for_each(|inner| self.collect(inner));
        }
        for name in ["items", "additionalProperties", "not"] {
            if schema[name].is_object() {
                self.collect(&schema[name]);
            }
        }
    }

    /// Why a pattern of the schema cannot be used.
    pub(super) fn wrong(&self, pattern: &str) -> Option<String> {
        self.compiled.get(pattern)?.err().map(ToString::to_string)
    }

    /// A pattern that cannot be used matches nothing. Where a match takes too much work the object is refused for that, at
    /// the field of the text.
    pub(super) fn matches(&self, pattern: &str, text: &str, work: &ValidationWork, at: At<'_>) -> bool {
        let Some(Ok(regex)) = self.compiled.get(pattern) else { return false };
        let found = regex.is_match(text, &mut work.regex_caches.borrow_mut(), &mut |steps| work.take(steps, at));
        found.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn patterns_of_a_schema_are_bounded_together() {
        let large: Map<String, Value> =
            (0..200).map(|n| (n.to_string(), json!({ "pattern": format!("\\pL{{20}}{n}") }))).collect();
        let patterns = Patterns::of(&json!({ "properties": large }));
        let wrong: Vec<String> = (0..200).filter_map(|n| patterns.wrong(&format!("\\pL{{20}}{n}"))).collect();
        assert!((100..200).contains(&wrong.len()), "{}", wrong.len());
        assert!(wrong.iter().all(|why| why.contains("take more than")));

        let small: Map<String, Value> =
            (0..500).map(|n| (n.to_string(), json!({ "pattern": format!("^[a-z]+{n}$") }))).collect();
        let patterns = Patterns::of(&json!({ "properties": small }));
        assert!((0..500).all(|n| patterns.wrong(&format!("^[a-z]+{n}$")).is_none()));
        assert!(patterns.matches("^[a-z]+7$", "abc7", &ValidationWork::default(), At::Root("")));
    }
}
