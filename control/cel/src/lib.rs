#![forbid(unsafe_code)]
//! CEL, the language of a definition's own rules (`x-kubernetes-validations`).
//!
//! Values in, values out, and bounded in every direction: rules come from clients and run on the store's thread, so a
//! rule's length and nesting, and the work of all rules of one write, have limits. Functions and names that are not
//! known here are found when a rule is read, so that a definition is refused instead of half followed.

pub mod bounded_regex;
mod collections;
mod cost;
mod cost_calls;
mod evaluate;
mod format;
mod formats;
mod functions;
mod lexer;
mod net;
mod overloads;
mod parse;
mod sizes;
mod text;
mod type_check;
mod value;

use serde_json::Value;

use bounded_regex::{PatternSet, RegexCaches};

pub use evaluate::EvalScope;
pub use format::double;
pub use formats::is_of_format;
pub use sizes::{SizeEstimator, declared_max};
pub use type_check::CelType;
use type_check::TypeScope;
pub use value::CelValue;

/// Bytes of one rule.
pub const RULE_BYTES_MAX: usize = 16 * 1024;
/// Levels of brackets, and of what they hold; evaluation and reading are recursive.
const NESTING_MAX: usize = 40;
/// Levels of a rule once it is read: a sum of a hundred parts has a hundred.
const DEPTH_MAX: usize = 150;
/// Steps that all rules of one write may take; a step is one part of a rule looked at, or ten bytes of text. A million
/// take some tens of milliseconds.
pub const STEPS_MAX: u64 = 1_000_000;

/// A rule that was read.
#[derive(Debug)]
pub struct CelProgram {
    root: parse::Expr,
    /// It looks at what was there before: without that it says nothing.
    pub uses_old_self: bool,
}

/// What is wrong with a rule's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// The byte it is about.
    at: usize,
    why: String,
}

impl CompileError {
    fn new(at: usize, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }

    /// As Kubernetes tells it: line and column, the line, and a finger.
    pub fn render(&self, rule: &str) -> String {
        let at = (0..=self.at.min(rule.len())).rev().find(|at| rule.is_char_boundary(*at)).unwrap_or(0);
        let (before, rest) = rule.split_at(at);
        let line = before.matches('\n').count() + 1;
        let begun = before.rsplit('\n').next().unwrap_or("");
        let shown = format!("{begun}{}", rest.split('\n').next().unwrap_or("")).replace('\t', " ");
        let column = begun.chars().count();
        format!("<input>:{line}:{}: {}\n | {shown}\n | {}^", column + 1, self.why, ".".repeat(column))
    }
}

/// Why a rule has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// There are no steps left.
    BudgetExceeded,
    /// The rule does not fit the value.
    Mismatch(String),
}

pub fn mismatch<T>(why: impl Into<String>) -> Result<T, EvalError> {
    Err(EvalError::Mismatch(why.into()))
}

/// Steps that are left, and the patterns that are read already.
#[derive(Debug)]
pub struct EvalBudget {
    remaining: u64,
    patterns: PatternSet,
    regex_caches: RegexCaches,
}

impl Default for EvalBudget {
    fn default() -> Self {
        Self { remaining: STEPS_MAX, patterns: PatternSet::default(), regex_caches: RegexCaches::default() }
    }
}

impl EvalBudget {
    pub fn spend(&mut self, steps: usize) -> Result<(), EvalError> {
        self.remaining = self.remaining.checked_sub(steps as u64).ok_or(EvalError::BudgetExceeded)?;
        Ok(())
    }

    /// For going through, or making, that much text.
    fn spend_text(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.spend(bytes / 10 + 1)
    }
}

impl CelProgram {
    /// Reads a rule that may speak of `names`.
    pub fn parse(rule: &str, names: &[&str]) -> Result<Self, CompileError> {
        if rule.len() > RULE_BYTES_MAX {
            return Err(CompileError::new(0, format!("a rule is at most {RULE_BYTES_MAX} bytes long")));
        }
        let (root, compares) = parse::parse(rule, names)?;
        Ok(Self { root, uses_old_self: compares })
    }

    /// What kind of value it gives, and what it costs at most, where `self` is of `schema` and of the kind `this`.
    pub fn check<'a>(
        &self,
        this: &CelType<'a>,
        was: CelType<'a>,
        (schema, whole): (&'a Value, bool),
        sizes: &SizeEstimator,
    ) -> Result<(CelType<'a>, u64), CompileError> {
        let notes = cost::TypeMap::default();
        let old = TypeScope {
            name: "oldSelf",
            kind: was,
            outer: None,
            type_map: Some(&notes),
            patterns: Some(&sizes.patterns),
        };
        let known = TypeScope { name: "self", kind: this.clone(), outer: Some(&old), type_map: None, patterns: None };
        let found = type_check::type_of(&self.root, &known)?;
        let root = sizes::SchemaNode::Schema { schema, whole };
        let cost = cost::max_cost(&self.root, root, &notes.borrow(), sizes);
        Ok((found, cost))
    }

    pub fn evaluate(&self, scope: &EvalScope<'_>, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
        evaluate::evaluate(&self.root, scope, steps)
    }
}

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod kind_tests;
#[cfg(test)]
mod tests;
