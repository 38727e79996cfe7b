//! The filter of a subscriber, as tables carry it.

use std::sync::Arc;

use super::cesql::CesqlExpression;

/// Which events a subscriber gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventFilter {
    Everything,
    /// Every named attribute has exactly this value, in the canonical string form; an empty value means "present and
    /// not empty" (EV: `spec.filter.attributes`, upstream X-FLT-13).
    Exact(AttributeMatches),
    /// All rules hold (`spec.filters`, X-FLT-02). Shared, because every publish makes a new table.
    Rules(Arc<[FilterRule]>),
}

impl EventFilter {
    /// Whether an expression of CESQL is evaluated. Everything else only compares attributes.
    #[must_use]
    pub fn has_expression(&self) -> bool {
        match self {
            Self::Everything | Self::Exact(_) => false,
            Self::Rules(rules) => rules.iter().any(FilterRule::has_expression),
        }
    }
}

impl FilterRule {
    fn has_expression(&self) -> bool {
        match self {
            Self::Exact(_) | Self::Prefix(_) | Self::Suffix(_) | Self::Always(_) => false,
            Self::All(rules) | Self::Any(rules) => rules.iter().any(Self::has_expression),
            Self::Not(rule) => rule.has_expression(),
            Self::Sql(_) => true,
        }
    }
}

/// Attributes with their values, or parts of values.
pub type AttributeMatches = Vec<(Box<str>, Box<str>)>;

/// One filter in one dialect (X-FLT-04 to X-FLT-09). Values are not empty, except in [`EventFilter::Exact`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterRule {
    Exact(AttributeMatches),
    Prefix(AttributeMatches),
    Suffix(AttributeMatches),
    All(Vec<FilterRule>),
    Any(Vec<FilterRule>),
    Not(Box<FilterRule>),
    Sql(CesqlExpression),
    /// The same for every event.
    Always(FilterVerdict),
}

/// The verdict of a rule on an event. Only `Fail` filters it out (X-FLT-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    Pass,
    Fail,
    NoFilter,
}
