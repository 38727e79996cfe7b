//! Prints each measured value next to its target.

#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<[String; 4]>,
}

impl Table {
    pub(super) fn note(&mut self, what: &str, unit: &str, value: f64) {
        self.row(what, unit, value, String::new());
    }

    pub(super) fn at_least(&mut self, what: &str, unit: &str, value: f64, wanted: f64) {
        self.row(what, unit, value, verdict(value >= wanted, &format!("at least {}", digits(wanted))));
    }

    pub(super) fn at_most(&mut self, what: &str, unit: &str, value: f64, wanted: f64) {
        self.row(what, unit, value, verdict(value <= wanted, &format!("at most {}", digits(wanted))));
    }

    /// Also printed at once: a long run shows progress.
    fn row(&mut self, what: &str, unit: &str, value: f64, verdict: String) {
        let row = [what.to_owned(), digits(value), unit.to_owned(), verdict];
        println!("  {}", row.join("  "));
        self.rows.push(row);
    }

    pub(super) fn print(&self) {
        println!("\n| what | figure | unit | target |\n|---|---|---|---|");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
    }
}

fn verdict(holds: bool, wanted: &str) -> String {
    format!("{wanted}: {}", if holds { "pass" } else { "MISS" })
}

/// Four digits are more than a measurement has.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
