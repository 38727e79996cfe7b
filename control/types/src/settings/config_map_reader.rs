//! Reads typed values from a ConfigMap, and names the key of an invalid one.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::ConfigMapData;
use crate::duration;
use crate::field_errors::FieldErrors;

#[derive(Debug)]
pub struct ConfigMapReader<'a> {
    pub data: &'a ConfigMapData,
    pub problems: &'a mut FieldErrors,
}

impl<'a> ConfigMapReader<'a> {
    pub fn of(data: &'a ConfigMapData, problems: &'a mut FieldErrors) -> Self {
        Self { data, problems }
    }

    pub fn error(&mut self, key: &str, why: &str) {
        let value = self.data.get(key).map_or("", String::as_str);
        self.problems.add(format!("data[{key}]"), format!("invalid value: {value}: {why}"));
    }

    pub fn number(&mut self, key: &str, bounds: RangeInclusive<f64>, into: &mut f64) {
        let (start, end) = (bounds.start(), bounds.end());
        let what = if *end == f64::MAX {
            format!("a number of at least {start}")
        } else {
            format!("a number from {start} to {end}")
        };
        self.number_of(key, |number| bounds.contains(&number), &what, into);
    }

    pub fn number_above(&mut self, key: &str, bound: f64, into: &mut f64) {
        let is_above = |number: f64| number > bound && number.is_finite();
        self.number_of(key, is_above, &format!("a number above {bound}"), into);
    }

    fn number_of(&mut self, key: &str, good: impl Fn(f64) -> bool, what: &str, into: &mut f64) {
        let Some(text) = self.data.get(key) else { return };
        match text.trim().parse::<f64>() {
            Ok(number) if good(number) => *into = number,
            _ => self.error(key, &format!("{what} is needed")),
        }
    }

    /// A duration in Go's notation.
    pub fn duration(&mut self, key: &str, bounds: RangeInclusive<Duration>, into: &mut Duration) {
        let Some(text) = self.data.get(key) else { return };
        let (start, end) = (bounds.start(), bounds.end());
        match duration::parse_go(text.trim()) {
            Some(value) if bounds.contains(&value) => *into = value,
            _ if *end == Duration::MAX => {
                self.error(key, &format!("a duration of at least {start:?} is needed"));
            }
            _ => self.error(key, &format!("a duration from {start:?} to {end:?} is needed")),
        }
    }

    pub fn flag(&mut self, key: &str, into: &mut bool) {
        let Some(text) = self.data.get(key) else { return };
        match text.trim().to_ascii_lowercase().as_str() {
            "true" => *into = true,
            "false" => *into = false,
            _ => self.error(key, "true or false is needed"),
        }
    }

    pub fn count(&mut self, key: &str, into: &mut u32) {
        let Some(text) = self.data.get(key) else { return };
        match text.trim().parse::<i32>() {
            Ok(number) if number >= 0 => *into = number.unsigned_abs(),
            _ => self.error(key, &format!("a whole number from 0 to {} is needed", i32::MAX)),
        }
    }

    pub fn integer(&mut self, key: &str, bounds: RangeInclusive<i64>, into: &mut i64) {
        let Some(text) = self.data.get(key) else { return };
        match text.trim().parse::<i64>() {
            Ok(number) if bounds.contains(&number) => *into = number,
            _ => self.error(key, &format!("a whole number from {} to {} is needed", bounds.start(), bounds.end())),
        }
    }

    /// One of some words, in any case.
    pub fn one_of<T: Copy>(&mut self, key: &str, words: &[(&str, T)], into: &mut T) {
        let Some(text) = self.data.get(key) else { return };
        match words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())) {
            Some((_, meant)) => *into = *meant,
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).filter(|word| !word.is_empty()).collect();
                self.error(key, &format!("one of {} is needed", known.join(", ")));
            }
        }
    }

    /// Enabled or Disabled, which is also what nothing means.
    pub fn enabled_or_disabled(&mut self, key: &str, into: &mut bool) {
        self.one_of(key, &[("Enabled", true), ("Disabled", false), ("", false)], into);
    }

    /// A text that `good` accepts; `what` describes the valid values.
    pub fn text(&mut self, key: &str, good: impl Fn(&str) -> bool, what: &str, into: &mut String) {
        let Some(text) = self.data.get(key) else { return };
        if good(text.trim()) {
            *into = text.trim().to_owned();
        } else {
            self.error(key, &format!("{what} is needed"));
        }
    }
}
