//! CEL, the language of a definition's own rules (`x-kubernetes-validations`).
//!
//! Values in, values out, and bounded in every direction: rules come from clients and run on the store's thread, so a
//! rule's length and nesting, and the work of all rules of one write, have limits. Functions and names that are not
//! known here are found when a rule is read, so that a definition is refused instead of half followed.

mod call;
mod check;
mod collections;
mod cost;
mod cost_calls;
mod evaluate;
mod format;
mod formats;
mod net;
mod overloads;
mod parse;
mod sizes;
mod text;
mod token;
mod value;

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

pub(crate) use check::Kind;
use check::Known;
pub(crate) use evaluate::Scope;
pub(crate) use format::double;
pub(crate) use formats::is_of_format;
pub(crate) use sizes::{Sizes, told_most};
pub(crate) use value::Val;

/// Bytes of one rule.
pub(crate) const RULE_BYTES_MAX: usize = 16 * 1024;
/// Levels of brackets, and of what they hold; evaluation and reading are recursive.
const NESTING_MAX: usize = 40;
/// Levels of a rule once it is read: a sum of a hundred parts has a hundred.
const DEPTH_MAX: usize = 150;
/// Steps that all rules of one write may take; a step is one part of a rule looked at, or ten bytes of text. A million
/// take some tens of milliseconds.
pub(crate) const STEPS_MAX: u64 = 1_000_000;

/// A rule that was read.
#[derive(Debug)]
pub(crate) struct Program {
    root: parse::Expr,
    /// It looks at what was there before: without that it says nothing.
    pub(crate) compares: bool,
}

/// What is wrong with a rule's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The byte it is about.
    at: usize,
    why: String,
}

impl Mistake {
    fn new(at: usize, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }

    /// As Kubernetes tells it: line and column, the line, and a finger.
    pub(crate) fn told(&self, rule: &str) -> String {
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
pub(crate) enum Failure {
    /// There are no steps left.
    Over,
    /// The rule does not fit the value.
    Wrong(String),
}

pub(crate) fn wrong<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Wrong(why.into()))
}

/// Steps that are left, and the patterns that are read already.
#[derive(Debug)]
pub(crate) struct Steps {
    left: u64,
    patterns: HashMap<String, Regex>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { left: STEPS_MAX, patterns: HashMap::new() }
    }
}

impl Steps {
    pub(crate) fn take(&mut self, steps: usize) -> Result<(), Failure> {
        self.left = self.left.checked_sub(steps as u64).ok_or(Failure::Over)?;
        Ok(())
    }

    /// For going through, or making, that much text.
    fn text(&mut self, bytes: usize) -> Result<(), Failure> {
        self.take(bytes / 10 + 1)
    }
}

impl Program {
    /// Reads a rule that may speak of `names`.
    pub(crate) fn read(rule: &str, names: &[&str]) -> Result<Self, Mistake> {
        if rule.len() > RULE_BYTES_MAX {
            return Err(Mistake::new(0, format!("a rule is at most {RULE_BYTES_MAX} bytes long")));
        }
        let (root, compares) = parse::read(rule, names)?;
        Ok(Self { root, compares })
    }

    /// What kind of value it gives, and what it costs at most, where `self` is of `schema` and of the kind `this`.
    pub(crate) fn judged<'a>(
        &self,
        this: &Kind<'a>,
        was: Kind<'a>,
        (schema, whole): (&'a Value, bool),
        sizes: &Sizes,
    ) -> Result<(Kind<'a>, u64), Mistake> {
        let notes = cost::Kinds::default();
        let old = Known { name: "oldSelf", kind: was, outer: None, notes: Some(&notes) };
        let known = Known { name: "self", kind: this.clone(), outer: Some(&old), notes: None };
        let found = check::kind(&self.root, &known)?;
        let root = sizes::Node::Schema { schema, whole };
        let cost = cost::most(&self.root, root, &notes.borrow(), sizes);
        Ok((found, cost))
    }

    pub(crate) fn answer(&self, scope: &Scope<'_>, steps: &mut Steps) -> Result<Val, Failure> {
        evaluate::evaluate(&self.root, scope, steps)
    }
}

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod kind_tests;
#[cfg(test)]
mod tests;
