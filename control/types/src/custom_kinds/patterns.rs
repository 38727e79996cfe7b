//! A schema's regular expressions: compiled once, and bounded together.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::work::ValidationWork;

/// Bytes that a pattern may take compiled; one that needs more matches nothing that people write.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Bytes that all patterns of one version of a definition may take compiled. They stay in memory for as long as the process
/// lives, and a definition of 1 MB could name 50,000 of them.
const PATTERNS_BYTES_MAX: usize = 8 << 20;
/// Bytes of one part of a compiled pattern, as good as, and the parts that can be looked at in the time of a comparison.
const PART_BYTES: usize = 48;
const PARTS_A_STEP: usize = 500;
/// The sizes that are tried for a pattern, the smallest first: the compiler does not say how much one took.
const SIZES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, PATTERN_BYTES_MAX];

/// A schema's patterns by their text. A list's items share one, and compiling it takes longer than a match.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    compiled: HashMap<String, Result<Compiled, String>>,
    bytes: usize,
}

/// A pattern, and the size that was enough for it.
#[derive(Debug)]
struct Compiled {
    regex: Regex,
    bytes: usize,
}

impl Patterns {
    pub(super) fn of(schema: &Value) -> Self {
        let mut patterns = Self::default();
        patterns.collect(schema);
        patterns
    }

    fn collect(&mut self, schema: &Value) {
        if let Some(pattern) = schema["pattern"].as_str()
            && !self.compiled.contains_key(pattern)
        {
            let compiled = self.compile(pattern);
            self.compiled.insert(pattern.to_owned(), compiled);
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

    fn compile(&mut self, pattern: &str) -> Result<Compiled, String> {
        let left = PATTERNS_BYTES_MAX.saturating_sub(self.bytes);
        for size in SIZES.into_iter().filter(|size| *size <= left) {
            match RegexBuilder::new(pattern).size_limit(size).build() {
                Ok(regex) => {
                    self.bytes += size;
                    return Ok(Compiled { regex, bytes: size });
                }
                Err(regex::Error::CompiledTooBig(_)) if size < PATTERN_BYTES_MAX => self.bytes += size / SIZES.len(),
                Err(why) => {
                    // The error draws a picture of several lines; the last one says it.
                    let why = why.to_string();
                    return Err(why.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned());
                }
            }
        }
        Err(format!("the patterns of the schema take more than {PATTERNS_BYTES_MAX} bytes compiled"))
    }

    /// Why a pattern of the schema cannot be used.
    pub(super) fn wrong(&self, pattern: &str) -> Option<&str> {
        self.compiled.get(pattern)?.as_ref().err().map(String::as_str)
    }

    /// A pattern that cannot be used matches nothing. At worst a match looks at each part of the pattern for each letter of
    /// the text, which counts as work; where that is too much the object is refused for it.
    pub(super) fn matches(&self, pattern: &str, text: &str, work: &ValidationWork) -> bool {
        let Some(Ok(compiled)) = self.compiled.get(pattern) else { return false };
        !work.take(1 + text.len() * (compiled.bytes / PART_BYTES) / PARTS_A_STEP) || compiled.regex.is_match(text)
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
        let compiled = patterns.compiled.values().filter(|one| one.is_ok()).count();
        assert!((1..100).contains(&compiled), "{compiled}");
        assert!(patterns.compiled.values().any(|one| one.as_ref().is_err_and(|why| why.contains("take more than"))));

        let small: Map<String, Value> =
            (0..500).map(|n| (n.to_string(), json!({ "pattern": format!("^[a-z]+{n}$") }))).collect();
        let patterns = Patterns::of(&json!({ "properties": small }));
        assert!(
            patterns.compiled.values().all(Result::is_ok)
                && patterns.matches("^[a-z]+7$", "abc7", &ValidationWork::default())
        );
    }
}
