//! Regular expressions of routes, matched against paths, header values and query parameters.
//!
//! Compiled to a DFA by control. A match on a core looks at each byte once and needs no memory, whatever the pattern: there is
//! nothing that backtracks and no cache to fill. The price is the size of the DFA, which is bounded. A pattern that needs
//! more is refused.

use std::fmt;
use std::sync::Arc;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

/// The text of a pattern, in bytes: the limit of `value` in Gateway API.
const PATTERN_TEXT_MAX: usize = 4_096;
/// Bytes of a compiled pattern. `/v[0-9]+/users/[^/]+` takes 3 KiB; a thousand routes with the largest take 128 MiB.
const PATTERN_BYTES_MAX: usize = 128 << 10;
/// Memory for the compilation of a pattern, in bytes. It takes some 20 ms at most.
const COMPILATION_BYTES_MAX: usize = 1 << 20;

/// A pattern that a whole value must match. Letters and classes are those of ASCII; `(?i)` ignores their case.
#[derive(Clone)]
pub struct MatchRegex(Arc<CompiledRegex>);

struct CompiledRegex {
    pattern: Box<str>,
    dfa: dense::DFA<Vec<u32>>,
}

/// Why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatchRegexError {
    #[error("is not a regular expression: {0}")]
    Syntax(Box<str>),
    #[error("is too large: its text has more than {PATTERN_TEXT_MAX} bytes")]
    Text,
    #[error("is too large: compiled it takes more than {PATTERN_BYTES_MAX} bytes; use fewer or smaller repetitions")]
    Size,
}

impl MatchRegex {
    /// Compiles a pattern.
    ///
    /// # Errors
    ///
    /// It is not a regular expression, or it takes too much memory.
    pub fn new(pattern: &str) -> Result<Self, MatchRegexError> {
        if pattern.len() > PATTERN_TEXT_MAX {
            return Err(MatchRegexError::Text);
        }
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let whole = format!(r"(?:{pattern})\z");
        // By itself first: `a)|(b` is a pattern only within the group.
        for text in [pattern, &whole] {
            match syntax::parse_with(text, &syntax) {
                Err(why) => return Err(MatchRegexError::Syntax(last_line(&why.to_string()))),
                // The one part of a pattern that a DFA cannot have.
                Ok(parsed) if parsed.properties().look_set().contains_word_unicode() => {
                    let why = "word boundaries are those of ASCII; use them without (?u)";
                    return Err(MatchRegexError::Syntax(why.into()));
                }
                Ok(_) => {}
            }
        }
        let dfa = dense::Builder::new()
            .syntax(syntax)
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(COMPILATION_BYTES_MAX)))
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Anchored)
                    .dfa_size_limit(Some(PATTERN_BYTES_MAX))
                    .determinize_size_limit(Some(COMPILATION_BYTES_MAX)),
            )
            .build(&whole)
            .map_err(|_| MatchRegexError::Size)?; // it is a pattern, so only a limit can stop it
        Ok(Self(Arc::new(CompiledRegex { pattern: pattern.into(), dfa })))
    }

    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.0.pattern
    }

    /// Whether the whole value matches.
    #[must_use]
    pub fn is_match(&self, value: &[u8]) -> bool {
        let input = Input::new(value).anchored(Anchored::Yes).earliest(true);
        // An error needs a byte that stops the search, and the DFA has no such byte.
        matches!(self.0.dfa.try_search_fwd(&input), Ok(Some(_)))
    }
}

impl PartialEq for MatchRegex {
    fn eq(&self, other: &Self) -> bool {
        self.0.pattern == other.0.pattern
    }
}

impl Eq for MatchRegex {}

impl fmt::Debug for MatchRegex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MatchRegex({:?})", self.0.pattern)
    }
}

/// The sentence of an error that also draws the pattern.
fn last_line(why: &str) -> Box<str> {
    let line = why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(why).trim();
    line.strip_prefix("error: ").unwrap_or(line).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_value_must_match() {
        for (pattern, value, matches) in [
            ("/v[0-9]+/users", "/v12/users", true),
            ("/v[0-9]+/users", "/v12/users/7", false),
            ("/v[0-9]+/users", "/x/v12/users", false),
            ("/a|/b", "/b", true),
            ("/a|/b", "/ab", false),
            ("^/a$", "/a", true),
            ("(?i)bearer .+", "BEARER x", true),
            ("a.c", "a\u{e9}c", false),
            ("a..c", "a\u{e9}c", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(MatchRegex::new(pattern).unwrap().is_match(value.as_bytes()), matches, "{pattern} {value}");
        }
    }

    #[test]
    fn bytes_beyond_ascii_are_matched_as_bytes() {
        assert!(MatchRegex::new("a.*b").unwrap().is_match(b"a\xff\xfe\x80b"));
        assert!(!MatchRegex::new(r"\w+").unwrap().is_match("\u{e9}".as_bytes()));
    }

    #[test]
    fn invalid_pattern_is_refused_in_one_line() {
        for pattern in ["(", "a)|(b", "[", r"\p{Greek}", "a{2,1}", "(?=a)", "(?x)a # b", r"(?u)a\b"] {
            let why = MatchRegex::new(pattern).unwrap_err();
            assert!(matches!(&why, MatchRegexError::Syntax(text) if !text.contains('\n')), "{pattern} {why}");
        }
    }

    /// A DFA doubles with each repetition here. It must not take the memory, or the time.
    #[test]
    fn pattern_with_too_many_states_is_refused() {
        for pattern in ["[01]*1[01]{30}", "(a|b)*a(a|b){200}", "(?:.{1000}){1000}", &"a?".repeat(2_000)] {
            assert_eq!(MatchRegex::new(pattern).unwrap_err(), MatchRegexError::Size, "{pattern}");
        }
        assert_eq!(MatchRegex::new(&"a".repeat(4_097)).unwrap_err(), MatchRegexError::Text);
    }
}
