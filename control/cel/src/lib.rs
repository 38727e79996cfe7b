#![forbid(unsafe_code)]
//! CEL, the language of validation rules in definitions (`x-kubernetes-validations`).
//!
//! Values in, values out, and bounded in every direction: rules come from clients and run on the store's thread, so a
//! rule's length and nesting, and the work of all rules of one write, have limits. Functions and names that are not
//! supported are found when a rule is compiled, so that a definition is rejected instead of partly enforced.
//!
//! `CelProgram` passes through the modules in order, from the text to the result: `lexer` and `parse` make the tree, `type_check` (with
//! `overloads`) and `cost` check it against the schema, and `evaluate` calls `functions` on a `value`.

pub mod bounded_regex;
mod budget;
mod cel_type;
mod collections;
mod cost;
mod error;
mod evaluate;
mod format;
mod formats;
mod function_table;
mod functions;
mod lexer;
mod limits;
mod net;
mod overloads;
mod parse;
mod sizes;
mod text;
mod to_text;
mod type_check;
mod value;

use serde_json::Value;

pub use budget::EvalBudget;
pub use cel_type::CelType;
pub use error::{CompileError, EvalError, mismatch};
pub use evaluate::EvalScope;
pub use formats::is_of_format;
pub use limits::{RULE_BYTES_MAX, STEPS_MAX};
pub use sizes::{SizeEstimator, declared_max};
pub use to_text::double;
use type_check::{TypeMap, TypeScope};
pub use value::CelValue;

/// A rule that was read.
#[derive(Debug)]
pub struct CelProgram {
    root: parse::Expr,
    /// It looks at what was there before: without that it says nothing.
    pub uses_old_self: bool,
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

    /// The type of its value, and its maximum cost, where `self` has `schema` and the type `this`.
    pub fn check<'a>(
        &self,
        this: &CelType<'a>,
        was: CelType<'a>,
        (schema, whole): (&'a Value, bool),
        sizes: &SizeEstimator,
    ) -> Result<(CelType<'a>, u64), CompileError> {
        let notes = TypeMap::default();
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
