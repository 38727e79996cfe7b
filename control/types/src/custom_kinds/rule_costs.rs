//! The cost limits of the rules of one version of a definition: for each rule, and for all together.

use super::work::At;
use crate::field_errors::FieldErrors;
use cel::SizeEstimator;

/// Estimated cost of one rule, for all places at which it can stand; Kubernetes' figure. Ten million are about a second.
const RULE_COST_MAX: u64 = 10_000_000;
/// ... of all rules of one version; Kubernetes' figure.
const VERSION_COST_MAX: u64 = 100_000_000;
/// The most expensive rules that are named when all of them cost too much.
const REPORTED_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct RuleCosts {
    pub(super) sizes: SizeEstimator,
    total: u64,
    /// The most expensive first, each with where it stands.
    most_expensive: Vec<(u64, String)>,
}

impl RuleCosts {
    /// Counts a rule, and says if it costs too much alone.
    pub(super) fn add(&mut self, at: At<'_>, what: &str, cost: u64, problems: &mut FieldErrors) {
        if cost > RULE_COST_MAX {
            problems.add(at, cost_error(&format!("estimated {what} cost"), cost, RULE_COST_MAX));
        }
        self.total = self.total.saturating_add(cost);
        // Less than a hundredth of the limit explains nothing.
        if cost >= VERSION_COST_MAX / 100 {
            self.most_expensive.push((cost, at.into()));
            self.most_expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.most_expensive.truncate(REPORTED_MAX);
        }
    }

    /// Reports whether all rules of the schema at `at` cost too much.
    pub(super) fn check_total(&self, at: &str, problems: &mut FieldErrors) {
        if self.total <= VERSION_COST_MAX {
            return;
        }
        for (_, at) in &self.most_expensive {
            let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            problems.add(at.as_str(), format!("Forbidden: {why}"));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        problems.add(at, cost_error(what, self.total, VERSION_COST_MAX));
    }
}

fn cost_error(what: &str, cost: u64, cost_max: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with a digit or six")]
    let times = cost as f64 / cost_max as f64;
    let times = match times {
        100.0.. => "more than 100x".to_owned(),
        1.5.. => format!("{times:.1}x"),
        _ => format!("{times:.6}x"),
    };
    format!(
        "Forbidden: {what} exceeds budget by factor of {times} (try simplifying the rule, or adding maxItems, \
         maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-20: rules that cost too much alone, and all together, are reported with the most expensive first.
    #[test]
    fn rules_have_a_limit_each_and_one_together() {
        let (mut costs, mut problems) = (RuleCosts::default(), FieldErrors::default());
        for (at, cost) in [("a", 1), ("b", RULE_COST_MAX), ("c", 12_000_000), ("d", 30_000_000)] {
            costs.add(At::Root(at), "rule", cost, &mut problems);
        }
        costs.check_total("s", &mut problems);
        let found: Vec<&str> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(found, ["c", "d"]);
        assert!(problems.list[0].message.contains("by factor of 1.200000x"), "{:?}", problems.list[0]);
        assert!(problems.list[1].message.contains("by factor of 3.0x"), "{:?}", problems.list[1]);

        costs.add(At::Root("e"), "messageExpression", u64::MAX, &mut problems);
        problems.list.clear();
        costs.check_total("s", &mut problems);
        let found: Vec<&str> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(found, ["e", "d", "c", "b", "s"]);
        assert!(problems.list[4].message.contains("more than 100x"));
    }
}
