//! Regular expressions of clients, with a bound on the cost of compiling one and of each match.
//!
//! A match is linear in its text, but its factor is the size of the pattern: `[01]*1[01]{1000}2` is 17 bytes long and takes
//! 33 µs a byte. A lazy DFA looks at each byte once and answers almost every match. Where its states do not fit into the
//! cache, the NFA is simulated, and that costs the text times the parts of the pattern. All of it is counted in steps.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use regex_automata::hybrid::dfa::{self, Cache, DFA};
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::iter::Searcher;
use regex_automata::{Input, MatchError};

/// Text of one pattern, in bytes. Reading takes up to 10 µs a byte (classes of Unicode), optimized.
const PATTERN_TEXT_MAX: usize = 8 << 10;
/// Text of all patterns of one schema, or of one write, in bytes: they are read in at most 0.6 s.
const PATTERNS_TEXT_MAX: usize = 64 << 10;
/// Bytes that one byte of a pattern counts as where letters match in both cases: case folding of a class takes ten times as long.
const CASE_FOLDING_FACTOR: usize = 10;
/// Bytes that a pattern may take compiled; patterns in use take a hundredth.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Bytes that all patterns of one schema, or of one write, may take compiled: those of a schema stay in memory.
const PATTERNS_BYTES_MAX: usize = 8 << 20;

/// Bytes of the states that the DFA of one pattern may have at a time. Patterns in use need some kilobytes.
const STATES_BYTES_MAX: usize = 128 << 10;
/// Patterns whose states are kept at a time.
const CACHES_MAX: usize = 64;
/// What a step stands for (20 ns, optimized): one part of a pattern at one byte, so many bytes in the DFA, or so many bytes
/// of new states.
const BYTES_A_STEP: usize = 10;
const STATE_BYTES_A_STEP: usize = 16;

/// Counts steps of a match before they are made; `false`: there are not so many left.
pub trait SpendSteps: FnMut(usize) -> bool {}
impl<F: FnMut(usize) -> bool> SpendSteps for F {}

/// The budget for steps is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepsExceeded;

/// Why a pattern cannot be used, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternError {
    Syntax(String),
    TooLarge(String),
}

impl fmt::Display for PatternError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Syntax(why) | Self::TooLarge(why)) = self;
        formatter.write_str(why)
    }
}

/// A pattern, compiled.
pub struct BoundedRegex {
    /// The key of its cached states.
    id: u64,
    dfa: DFA,
    nfa: PikeVM,
}

impl fmt::Debug for BoundedRegex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BoundedRegex({} parts)", self.parts())
    }
}

/// States of DFAs that matches have made, by pattern; of one write.
#[derive(Debug, Default)]
pub struct RegexCaches {
    states: HashMap<u64, Cache>,
}

/// The DFA's result for a text.
enum Scan {
    NoMatch,
    /// The leftmost match ends here.
    MatchEnd(usize),
    /// Its states do not fit, or the pattern asks for what a DFA cannot tell.
    Unknown,
}

impl BoundedRegex {
    fn compile(pattern: &str) -> Result<Self, PatternError> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let text = text_bytes(pattern);
        if text > PATTERN_TEXT_MAX {
            return Err(PatternError::TooLarge(format!(
                "the pattern counts as {text} bytes, limit is {PATTERN_TEXT_MAX} (with (?i) a byte counts as \
                 {CASE_FOLDING_FACTOR})"
            )));
        }
        let config =
            thompson::Config::new().nfa_size_limit(Some(PATTERN_BYTES_MAX)).which_captures(WhichCaptures::Implicit);
        let nfa = thompson::Compiler::new().configure(config).build(pattern).map_err(|why| build_error(&why))?;
        let config = dfa::Config::new()
            .cache_capacity(STATES_BYTES_MAX)
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(0))
            .unicode_word_boundary(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa.clone());
        let dfa = dfa.map_err(|why| PatternError::TooLarge(why.to_string()))?;
        let nfa = PikeVM::new_from_nfa(nfa).map_err(|why| PatternError::TooLarge(why.to_string()))?;
        Ok(Self { id: IDS.fetch_add(1, Ordering::Relaxed), dfa, nfa })
    }

    fn bytes(&self) -> usize {
        self.compiled().memory_usage()
    }

    /// The maximum work of a simulation for each byte.
    fn parts(&self) -> usize {
        self.compiled().states().len()
    }

    fn compiled(&self) -> &NFA {
        self.nfa.get_nfa()
    }

    pub fn is_match(
        &self,
        text: &str,
        caches: &mut RegexCaches,
        spend: &mut impl SpendSteps,
    ) -> Result<bool, StepsExceeded> {
        match self.scan(&Input::new(text).earliest(true), caches, spend)? {
            Scan::NoMatch => Ok(false),
            Scan::MatchEnd(_) => Ok(true),
            Scan::Unknown => {
                self.spend_simulation(text.len(), spend)?;
                Ok(self.nfa.is_match(&mut self.nfa.create_cache(), text))
            }
        }
    }

    /// Up to `count_max` matches, none of which overlap.
    pub fn find_all(
        &self,
        text: &str,
        count_max: usize,
        caches: &mut RegexCaches,
        spend: &mut impl SpendSteps,
    ) -> Result<Vec<Range<usize>>, StepsExceeded> {
        let mut searcher = Searcher::new(Input::new(text));
        let mut found = Vec::new();
        while found.len() < count_max {
            let next = searcher.try_advance(|input| {
                let stop = match self.scan(input, caches, spend).map_err(|_| MatchError::gave_up(0))? {
                    Scan::NoMatch => return Ok(None),
                    Scan::MatchEnd(end) => end,
                    Scan::Unknown => input.end(),
                };
                let input = input.clone().span(input.start()..stop);
                self.spend_simulation(input.get_span().len(), spend).map_err(|_| MatchError::gave_up(0))?;
                Ok(self.nfa.find(&mut self.nfa.create_cache(), input))
            });
            match next {
                Ok(Some(next)) => found.push(next.range()),
                Ok(None) => break,
                Err(_) => return Err(StepsExceeded),
            }
        }
        Ok(found)
    }

    fn scan(
        &self,
        input: &Input<'_>,
        caches: &mut RegexCaches,
        spend: &mut impl SpendSteps,
    ) -> Result<Scan, StepsExceeded> {
        let cache = caches.of(self);
        // A definition's text is scanned at 2 ns a byte at most, so that what is left over the budget is no harm.
        take(1, spend)?;
        let (searched, states) = (cache.search_total_len(), cache.memory_usage());
        let found = self.dfa.try_search_fwd(cache, input);
        let searched = cache.search_total_len().saturating_sub(searched);
        let states = cache.memory_usage().saturating_sub(states);
        if found.is_err() {
            cache.reset(&self.dfa);
        }
        take(searched / BYTES_A_STEP + states / STATE_BYTES_A_STEP, spend)?;
        Ok(match found {
            Ok(None) => Scan::NoMatch,
            Ok(Some(end)) => Scan::MatchEnd(end.offset()),
            Err(_) => Scan::Unknown,
        })
    }

    fn spend_simulation(&self, bytes: usize, spend: &mut impl SpendSteps) -> Result<(), StepsExceeded> {
        take((bytes + 1).saturating_mul(self.parts()), spend)
    }
}

impl RegexCaches {
    fn of(&mut self, regex: &BoundedRegex) -> &mut Cache {
        if self.states.len() >= CACHES_MAX && !self.states.contains_key(&regex.id) {
            self.states.clear();
        }
        self.states.entry(regex.id).or_insert_with(|| regex.dfa.create_cache())
    }
}

fn take(steps: usize, spend: &mut impl SpendSteps) -> Result<(), StepsExceeded> {
    if spend(steps) { Ok(()) } else { Err(StepsExceeded) }
}

/// The cost of compiling the pattern. A text that only looks like a flag counts more than necessary.
fn text_bytes(pattern: &str) -> usize {
    let folds = pattern.split('?').skip(1).any(|behind| {
        let flags = behind.split([':', ')']).next().unwrap_or("");
        flags.contains('i') && flags.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-' || byte == b' ')
    });
    pattern.len() * if folds { CASE_FOLDING_FACTOR } else { 1 }
}

/// The parser draws a picture of several lines; the last one says it.
fn build_error(why: &thompson::BuildError) -> PatternError {
    if why.size_limit().is_some() {
        return PatternError::TooLarge(format!("the pattern takes more than {PATTERN_BYTES_MAX} bytes compiled"));
    }
    let text = why.source().map_or_else(|| why.to_string(), ToString::to_string);
    PatternError::Syntax(text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned())
}

/// Patterns by their text: each is compiled once, and all of them are bounded together.
#[derive(Debug)]
pub struct PatternSet {
    compiled: HashMap<String, Result<BoundedRegex, PatternError>>,
    text_left: usize,
    bytes_left: usize,
}

impl Default for PatternSet {
    fn default() -> Self {
        Self { compiled: HashMap::new(), text_left: PATTERNS_TEXT_MAX, bytes_left: PATTERNS_BYTES_MAX }
    }
}

impl PatternSet {
    pub fn get(&self, pattern: &str) -> Option<Result<&BoundedRegex, &PatternError>> {
        Some(self.compiled.get(pattern)?.as_ref())
    }

    pub fn get_or_compile(&mut self, pattern: &str) -> Result<&BoundedRegex, &PatternError> {
        if !self.compiled.contains_key(pattern) {
            let compiled = self.compile(pattern);
            self.compiled.insert(pattern.to_owned(), compiled);
        }
        self.compiled[pattern].as_ref()
    }

    fn compile(&mut self, pattern: &str) -> Result<BoundedRegex, PatternError> {
        let text = text_bytes(pattern);
        let too_much = |what: &str, max: usize| {
            Err(PatternError::TooLarge(format!("all patterns together take more than {max} bytes {what}")))
        };
        if text <= PATTERN_TEXT_MAX {
            match self.text_left.checked_sub(text) {
                Some(left) => self.text_left = left,
                None => return too_much("of text", PATTERNS_TEXT_MAX),
            }
        }
        let compiled = BoundedRegex::compile(pattern)?;
        match self.bytes_left.checked_sub(compiled.bytes()) {
            Some(left) => self.bytes_left = left,
            None => return too_much("compiled", PATTERNS_BYTES_MAX),
        }
        Ok(compiled)
    }
}
